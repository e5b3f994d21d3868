"""A node of a cluster as its containers see it, without the cluster: namespaces, users, mounts and signals are the kernel's own.

What the kubelet and a container runtime would do is done here by hand: a pod has a network, a name and an IPC space of its own, a
container a mount and a PID namespace, its user and its groups as the manifest has them, and no capabilities.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import spotguard
from tests.caller import servers_required
from tests.e2e.harness import Machine
from tests.e2e.machines import Inside, children
from tests.e2e.processes import TIMEOUT, Running

_PROGRAM = Path(__file__).parent / "programs" / "container.py"
_POD = ("--net", "--uts", "--ipc", "--pid", "--mount")


def _problem() -> str:
    if os.geteuid() != 0:
        return "pods are made by root: run these tests as root"
    for program in ("unshare", "nsenter", "setpriv", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed: apt-get install util-linux"
    trying = ("unshare", *_POD, "--fork", "--mount-proc", "true")
    done = subprocess.run(trying, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        return f"no namespaces here ({done.stderr.strip()}): allow them (in a container: --cap-add=SYS_ADMIN)"
    return ""


def _is_readable() -> bool:
    """By the users of the pods: this checkout, and what is installed with it. (Where Python lies they are let in.)"""
    words = [word for path in (spotguard.__file__, sys.prefix) for word in ("-a", "-r", str(path))]
    somebody = ("setpriv", "--reuid=65532", "--regid=65532", "--clear-groups")
    return subprocess.run([*somebody, "test", *words[1:]], timeout=TIMEOUT).returncode == 0


class Node(Machine):
    """One machine of a cluster: a folder that is its /run/spotguard, one for a store, and what runs in pods. It starts and ends as any."""

    def __init__(self) -> None:
        if problem := _problem():
            (pytest.fail if servers_required() else pytest.skip)(problem)
        if not _is_readable():
            pytest.skip("other users cannot read this checkout: put it where they can, as below /opt")
        # Every user has to get there, and pytest's folders are one user's.
        super().__init__(Path(tempfile.mkdtemp(prefix="sg-node-", dir="/tmp")))
        self.folder.chmod(0o755)
        #: As the kubelet makes a hostPath (DirectoryOrCreate).
        self.sockets = self.folder / "spotguard"
        self.sockets.mkdir(mode=0o755)
        self.store.mkdir()
        self.store.chmod(0o1777)
        self._number = 0

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder)

    def empty_folder(self) -> Path:
        """An `emptyDir`, as the kubelet makes it: root's, and open to everybody."""
        self._number += 1
        made = self.folder / f"empty{self._number}"
        made.mkdir()
        made.chmod(0o777)
        return made

    def pod(self, *, host_network: bool = False) -> Pod:
        return Pod(self, host_network)

    def on_the_host(
        self,
        spec: dict[str, Any],
        words: list[str],
        mounts: dict[str, Path],
        env: dict[str, str] | None = None,
        *,
        pids: bool,
    ) -> Running:
        """A container with the node's network, and the node's processes where `pids`."""
        own = () if pids else ("--pid", "--mount-proc", "--kill-child")
        return self.contained(["unshare", "--mount", "--fork", *own], spec, words, mounts, env)

    def contained(
        self,
        around: list[str],
        spec: dict[str, Any],
        words: list[str],
        mounts: dict[str, Path],
        env: dict[str, str] | None,
    ) -> Running:
        """`spec` is a pod's `securityContext`, with the container's over it; the mounts lie below /run, and may end with ":ro"."""
        said = {
            "user": spec.get("runAsUser", 0),
            "group": spec.get("runAsGroup", 0),
            "groups": spec.get("supplementalGroups", []),
            "capabilities": spec.get("capabilities", {}).get("add", []),
            "mounts": {where: str(what) for where, what in {**mounts, "/run/store": self.store}.items()},
        }
        command = [*around, sys.executable, "-S", str(_PROGRAM), json.dumps(said), *words]
        running = Inside(command, Path("/"), {**self.env, **(env or {})})
        self._started.append(running)
        return running


class Pod:
    """What its containers share, held by a process that does nothing (Kubernetes' own is called pause)."""

    def __init__(self, node: Node, host_network: bool) -> None:
        self._node = node
        own = [word for word in _POD if not (host_network and word == "--net")]
        self._pause = node.start("unshare", *own, "--fork", "--mount-proc", "--kill-child", "cat")
        self._pause.say("here")
        self._pause.out.until("^here$")
        (self._first,) = children(self._pause.pid)

    def container(
        self,
        spec: dict[str, Any],
        words: list[str],
        mounts: dict[str, Path],
        env: dict[str, str] | None = None,
        *,
        share_pids: bool = False,
    ) -> Running:
        """Its first process is number 1 of a PID namespace of its own, or one of the pod's where those are shared."""
        entering = ["nsenter", f"--target={self._first}", "--net", "--uts", "--ipc"]
        if share_pids:
            around = [*entering, "--pid", "--mount", "unshare", "--mount"]
        else:
            around = [*entering, "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        return self._node.contained(around, spec, words, mounts, env)
