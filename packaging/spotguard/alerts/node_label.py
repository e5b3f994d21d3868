"""The label on a Kubernetes node whose machine failed, so that the scheduler places no pod of such jobs there again.

It is a JSON merge patch of the node (Kubernetes' API concepts, "Patches and updates"; RFC 7386), with the token that the pod's
service account has. A cluster that gives the account no such right refuses it, and nothing else changes.

The agent starts it as it leaves the machine, because TLS is too large for the agent, and because an API server may hang.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..agent.process.helpers.node_label import LABEL
from ..providers.text import TEXT, clip

#: Seconds to connect and without a byte of the answer; all tries; and between two tries.
_PATIENCE, _TRIED_FOR, _APART = 3.0, 8.0, 1.0
#: Bytes of the answer: a node with many images is some 100 KiB.
_MOST = 4 * 1024 * 1024
#: A node's name is a DNS subdomain (Kubernetes, "Object names and IDs").
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
#: A label's value ("Labels and selectors").
_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
#: Statuses after which the same request may be accepted later: too many requests, and errors of the server.
_LATER = frozenset({429, 500, 502, 503, 504})
_ROLE = (
    'a ClusterRole with rules: [{apiGroups: [""], resources: [nodes], verbs: [patch]}] would let it (spotguard deploy containers '
    "node-label), or its token does not name its node, which takes Kubernetes 1.32"
)


class _NotLabelled(Exception):
    """The API server did not label the node.

    Args:
        why: the reason, for people.
        later: whether the same request may be accepted later.
    """

    def __init__(self, why: str, *, later: bool = False) -> None:
        super().__init__(why)
        self.later = later


def set_label(node: str, value: str, env: Mapping[str, str], mount: Path) -> str:
    """Label the node, and return why it has no label; "" if it has one.

    Args:
        node: the node's name.
        value: the class of the failure.
        env: the pod's environment, which names the API server.
        mount: the service account's directory, with `token` and `ca.crt`.
    """
    if not _NODE.fullmatch(node):
        return f"NODE_NAME={clip(node, TEXT)!r} is no node's name: set it by the downward API (fieldPath: spec.nodeName)"
    if not _VALUE.fullmatch(value):
        return f"{clip(value, TEXT)!r} cannot be the value of a label"
    until = time.monotonic() + _TRIED_FOR
    while True:
        try:
            _patch(node, value, env, mount)
            return ""
        except _NotLabelled as error:
            if not error.later or time.monotonic() + _APART >= until:
                return str(error)
        except (OSError, http.client.HTTPException, ValueError) as error:  # a host may be no name
            if isinstance(error, ssl.SSLCertVerificationError):
                return "the API server's certificate is not that of the cluster's CA"
            if isinstance(error, UnicodeError):  # a subclass of it in Python 3.13
                return "the API server's host is no name: check KUBERNETES_SERVICE_HOST"
            if time.monotonic() + _APART >= until:
                return f"the API server cannot be reached ({type(error).__name__})"
        time.sleep(_APART)


def _patch(node: str, value: str, env: Mapping[str, str], mount: Path) -> None:
    token, authority = _token(mount / "token"), mount / "ca.crt"
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except OSError as error:  # ssl.SSLError is one, too
        raise _NotLabelled(
            f"{authority} holds no certificates ({error.strerror}): the kubelet writes the cluster's CA there"
        ) from None
    port = env.get("KUBERNETES_SERVICE_PORT_HTTPS") or env.get("KUBERNETES_SERVICE_PORT") or "443"
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise _NotLabelled(
            f"KUBERNETES_SERVICE_PORT={clip(port, TEXT)!r} is not a port: a Service called kubernetes-service overwrote it; set enableServiceLinks: false"
        )
    server = http.client.HTTPSConnection(
        env["KUBERNETES_SERVICE_HOST"], int(port), timeout=_PATIENCE, context=context
    )
    try:
        server.request(
            "PATCH",
            f"/api/v1/nodes/{node}?fieldManager=spotguard",
            json.dumps({"metadata": {"labels": {LABEL: value}}}),
            {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
                "Accept": "application/json",
            },
        )
        answer = server.getresponse()
        body = _parsed(answer.read(_MOST))
    finally:
        server.close()
    said = clip(str(body.get("message") or f"status {answer.status}"), TEXT)
    if answer.status in (401, 403):
        raise _NotLabelled(f"the API server refuses it ({said}); {_ROLE}")
    if answer.status != 200:
        raise _NotLabelled(f"the API server answers: {said}", later=answer.status in _LATER)
    metadata = body.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    if not isinstance(labels, dict) or labels.get(LABEL) != value:
        raise _NotLabelled("the answer is not that of an API server: it has no such label")


def _token(path: Path) -> str:
    """Return the account's token. Read at each try, because the kubelet replaces it before it expires."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise _NotLabelled(
            f"{path} cannot be read ({error.strerror}): set automountServiceAccountToken: true"
        ) from None
    if re.fullmatch(rb"[!-~]+", token) is None:  # http.client's error would show it
        raise _NotLabelled(f"{path} holds no token: expected one word, as the kubelet writes it")
    return token.decode("ascii")


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def main() -> int:
    """Set the label that stdin has, and print why it is not set."""
    given = json.load(sys.stdin)
    why = set_label(given["node"], given["value"], given["env"], Path(given["mount"]))
    print(json.dumps({"why": why}))
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
