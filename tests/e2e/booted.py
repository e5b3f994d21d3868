"""A machine that boots: a Debian with its own systemd and cloud-init, the cloud's service at its true address, and a disk
that is as fresh as a new machine's. `scripts/boot-image` makes the system; `systemd-nspawn` starts it.

It shares this machine's kernel and nothing else: its network is one of its own, in which 169.254.169.254 is a simulator of the
test's, its disk an overlay, its store a folder that all machines of the test see.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.caller import servers_required
from tests.e2e.harness import Machine
from tests.e2e.island import Island
from tests.e2e.machines import METADATA, SERVICES, Cloud
from tests.e2e.processes import TIMEOUT, eventually
from tests.servers.faults import FaultProxy

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / ".servers/boot"
#: What a machine's image has with its Python, as one for training does. The suite's own, seen from inside.
_OF_THE_IMAGE = (
    "filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "sympy", "torch", "typing_extensions"
)  # fmt: skip
#: systemd(1), SIGRTMIN+4: power off, as the button of a virtual machine asks for it.
_POWER_BUTTON = signal.SIGRTMIN + 4
#: Where a machine has a store that is no folder, on port 80.
STORE = "10.0.0.80"
#: Seconds: a boot with an installation in it, on a machine that does other things.
BOOT = 180.0


def require_image() -> None:
    """Skip the test where no machine can boot, and say why; where servers are required it fails."""
    problem = ""
    if os.geteuid() != 0:
        problem = "machines are booted by root"
    elif not (IMAGE / "ready").exists() or shutil.which("systemd-nspawn") is None:
        problem = "nothing to boot: scripts/boot-image makes it"
    elif not list((IMAGE / "root/usr/bin").glob(f"python3.{sys.version_info.minor}")):
        problem = "the image has another Python, for which the suite's torch is not made"
    if problem:
        (pytest.fail if servers_required() else pytest.skip)(problem)


def lay_out_index(wheels: list[Path], index: Path) -> None:
    """A package index of files (PEP 503): a folder for each project, with links to what lies there."""
    for wheel in wheels:
        project = index / wheel.name.partition("-")[0].lower().replace("_", "-")
        project.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, project)
        links = "".join(f'<a href="{each.name}">{each.name}</a>\n' for each in project.glob("*.whl"))
        (project / "index.html").write_text(links)


class Booted:
    """A machine that was created with this user-data. A context manager: it is gone at the end."""

    def __init__(
        self,
        folder: Path,
        name: str,
        cloud: Cloud,
        user_data: str,
        *,
        files: Path,
        store: Path,
        upstream: str = "",
    ) -> None:
        """
        Args:
            files: what the image has in /srv.
            store: what all machines see in /mnt/store.
            upstream: the endpoint of a server, which all machines have at STORE.
        """
        self.name, self._folder = name, folder / name
        self._user_data, self._files, self._store, self._upstream = user_data, files, store, upstream
        self.service = SERVICES[cloud]()
        self._held = ExitStack()
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._root = self._folder / "root"

    def __enter__(self) -> Self:
        with ExitStack() as held:
            for part in ("upper", "work", "root"):
                (self._folder / part).mkdir(parents=True)
            layers = (
                f"lowerdir={IMAGE / 'root'},upperdir={self._folder / 'upper'},workdir={self._folder / 'work'}"
            )
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(self._root)], check=True)
            held.callback(subprocess.run, ["umount", str(self._root)], check=True)
            self._furnish()
            harness = Machine(self._folder)
            held.callback(harness.close)
            island = Island(harness, "aws", METADATA, *([STORE] if self._upstream else []))
            self._network = f"/proc/{island.pid}/ns/net"
            self.service.adopt(island.listening[METADATA])
            held.enter_context(self.service)
            if self._upstream:
                held.enter_context(FaultProxy(self._upstream, at=island.listening[STORE]))
            held.callback(self.cut_power)
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.console(), self.journal(), self.log(), sep="\n---\n")
        self._held.close()

    def _furnish(self) -> None:
        seed = self._root / "var/lib/cloud/seed/nocloud"
        seed.mkdir(parents=True)
        (seed / "meta-data").write_text(f"instance-id: {self.name}\nlocal-hostname: {self.name}\n")
        (seed / "user-data").write_text(self._user_data)
        shutil.copytree(self._files, self._root / "srv", dirs_exist_ok=True)
        python = self._root / f"usr/local/lib/python3.{sys.version_info.minor}/dist-packages"
        python.mkdir(parents=True, exist_ok=True)
        for each in self._site().iterdir():
            if each.name.lower().startswith(_OF_THE_IMAGE):
                (python / each.name).symlink_to(f"/site/{each.name}")

    @staticmethod
    def _site() -> Path:
        import torch

        return Path(torch.__file__).parents[1]

    # --- power ---

    def boot(self) -> None:
        assert self._nspawn is None
        words = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--directory", str(self._root)]
        words += [f"--network-namespace-path={self._network}", f"--bind={self._store}:/mnt/store"]
        words += [f"--bind-ro={self._site()}:/site", "--boot"]
        with (self._folder / "console").open("ab") as console:
            self._nspawn = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=console, stderr=console)

    @property
    def init(self) -> int:
        """The first process of the machine, as this one counts."""
        assert self._nspawn is not None
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children")
        eventually(lambda: children.read_text().split(), "it starts")
        return int(children.read_text().split()[0])

    def press_power_button(self) -> None:
        """And wait until the machine is off."""
        assert self._nspawn is not None
        os.kill(self.init, _POWER_BUTTON)
        self.until_off()

    def until_off(self) -> None:
        """It switches itself off."""
        assert self._nspawn is not None
        self._nspawn.wait(BOOT)
        self._nspawn = None

    def cut_power(self) -> None:
        """Everything on it is gone, this instant."""
        if self._nspawn is not None:
            with contextlib.suppress(IndexError, ProcessLookupError, FileNotFoundError):
                os.kill(self.init, signal.SIGKILL)
            self._nspawn.wait(TIMEOUT)
            self._nspawn = None

    # --- looking ---

    def run(self, *words: str) -> str:
        """What a command on the machine prints."""
        command = ["nsenter", f"--target={self.init}", "--all", "--wd=/", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False).stdout

    def log(self) -> str:
        """cloud-init's."""
        log = self._root / "var/log/cloud-init-output.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def journal(self) -> str:
        """What everybody said, since the machine was made; also of one that is off."""
        words = [
            "journalctl",
            "--no-pager",
            "--output=cat",
            "--directory",
            str(self._root / "var/log/journal"),
        ]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout

    def console(self) -> str:
        return (self._folder / "console").read_text(errors="replace")

    def until(self, words: str, times: int = 1, timeout: float = BOOT) -> None:
        """Somebody on it has said so, so often. (A look costs a process, so not a hundred of them a second.)"""
        never, end = threading.Event(), time.monotonic() + timeout
        while self.journal().count(words) < times:
            assert time.monotonic() < end, f"{self.name}: {words!r} not {times} times in {timeout} s"
            never.wait(0.3)
