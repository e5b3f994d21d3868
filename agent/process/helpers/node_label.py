"""The label on this pod's Kubernetes node, once a run leaves the machine that failed (`--recover CLASS=leave`).

A process of its own sets it (`spotguard.alerts.node_label`): TLS takes more memory than the agent may, and an API server may hang.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from ....providers.text import TEXT, clip
from ..child import Child, Ended

logger = logging.getLogger("spotguard.agent")

LABEL = "spotguard.dev/unhealthy"
#: The variable that the downward API fills (fieldPath: spec.nodeName).
NODE = "NODE_NAME"
#: Kubernetes' mount of a service account's token and of the cluster's CA.
MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_SERVER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS")
#: Seconds that the agent's end waits for the API server: a label after the exit may come after the next pod.
_PATIENCE = 10.0


def node_of(env: Mapping[str, str]) -> str:
    """Return the name of the node that this pod may try to label; "" outside a pod, or without its name or a token."""
    named = env.get(NODE, "") if env.get(_SERVER[0]) else ""
    return named if named and Path(MOUNT, "token").exists() else ""


class NodeLabel:
    """The setter of the label. The loop's thread calls it.

    Args:
        node: the node.
        env: the agent's environment, which names the API server.
        patience: seconds that `close` waits.
    """

    def __init__(self, node: str, env: Mapping[str, str], patience: float = _PATIENCE) -> None:
        self._node, self._patience = node, patience
        self._server = {name: env[name] for name in _SERVER if name in env}
        self._process: Child | None = None

    def add(self, machine: str, kind: str, *, broken: bool) -> None:
        """Begin to set the label. Returns at once. The node of another machine is not known, so its label stays.

        The label stays until a person removes it, and concerns all jobs. So a failure that a program or a file system can cause on
        every machine sets none.

        Args:
            machine: the machine that failed; "": this one.
            kind: the class of the failure.
            broken: whether the error itself names broken hardware.
        """
        if machine or not broken or self._process is not None:
            return
        given = {"node": self._node, "value": kind, "env": self._server, "mount": MOUNT}
        try:
            self._process = Child(
                (sys.executable, "-P", "-m", "spotguard.alerts.node_label"),
                lambda ended: self._log(kind, ended),
                given=json.dumps(given).encode(),
            )
        except OSError as error:
            self._failed(kind, f"{sys.executable}: {error.strerror}")

    def close(self) -> None:
        """Wait for the API server, and then for the kill of a process that still waits for it."""
        if self._process is not None:
            self._process.close(self._patience)

    # --- the thread that follows the process ---

    def _log(self, kind: str, ended: Ended) -> None:
        try:
            why = str(json.loads(ended.output)["why"])
        except (ValueError, KeyError, TypeError):
            if ended.killed:
                why = f"the API server did not answer in {self._patience:.0f} s"
            else:
                why = f"its process has ended with {ended.returncode}"
        if why:
            self._failed(kind, why)
        else:
            logger.warning(
                "node %s has the label %s=%s: jobs of spotguard stay away from it until you remove that label",
                self._node,
                LABEL,
                kind,
            )

    def _failed(self, kind: str, why: str) -> None:
        logger.error(
            "node %s is not labelled: %s; until then: kubectl label --overwrite node %s %s=%s",
            self._node,
            clip(why, 4 * TEXT),
            self._node,
            LABEL,
            kind,
        )
