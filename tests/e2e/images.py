"""Images that are really built and containers that really run, by podman, with nothing from outside: `scripts/container-base` makes what they
are built on.

What this machine cannot do is left out: cgroups (limits of memory), and a network of the containers' own.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path

import pytest

from tests.caller import servers_required
from tests.e2e.harness import Machine
from tests.e2e.processes import Running
from tests.wheel import build_wheel

BASE = Path(__file__).parents[2] / ".servers/container"
#: A Python as python:slim has it: pip may install into it, and finds the suite's wheels and nothing else.
_BASE = """\
FROM scratch
ADD root.tar /
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
COPY wheels /wheels-of-the-index
COPY pip.conf /etc/pip.conf
"""
_PIP = "[global]\nno-index = true\nfind-links = /wheels-of-the-index\n"
#: Seconds: a build, on a machine that does other things.
BUILD = 300.0


def require_podman() -> None:
    """Skip the test where no image can be built, and say why; where servers are required it fails."""
    problem = ""
    if os.geteuid() != 0:
        problem = "containers are made by root here"
    elif not (BASE / "ready").exists() or shutil.which("podman") is None or shutil.which("crun") is None:
        problem = "nothing to build images on: scripts/container-base makes it"
    if problem:
        (pytest.fail if servers_required() else pytest.skip)(problem)


class Engine(Machine):
    """podman with a store of its own, which goes with it."""

    def __init__(self, folder: Path) -> None:
        require_podman()
        super().__init__(folder)
        storage = folder / "storage.conf"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/state"\n'
        )
        self.env["CONTAINERS_STORAGE_CONF"] = str(storage)
        # crun refuses a machine that has cgroups of both versions, and needs none here.
        hide = "umount /sys/fs/cgroup/unified 2>/dev/null; echo hidden; exec cat"
        holder = self.start("unshare", "--mount", "sh", "-c", hide)
        holder.out.until("^hidden$")
        self.enter(holder, "nsenter", "--mount")

    def close(self) -> None:
        self.podman("rm", "--all", "--force", "--time", "0")
        self.podman("rmi", "--all", "--force")
        self.podman("system", "reset", "--force")
        super().close()

    def podman(self, *words: str, timeout: float = BUILD) -> Running:
        """To its end."""
        running = self.start("podman", *words)
        running.ended(timeout)
        return running

    def said_by(self, *words: str) -> str:
        done = self.podman(*words)
        assert done.ended() == 0, done.account()
        return done.out.to_the_end().strip()

    def build(self, name: str, context: Path, *arguments: str) -> None:
        """As `docker build` would. Without a sandbox of its own for each step, which this machine does not allow."""
        self.said_by("build", "--isolation", "chroot", "--tag", name, *arguments, str(context))

    def base(self) -> str:
        """The image of a Python, to build on."""
        context = self.folder / "base"
        shutil.copytree(BASE, context)
        (context / "Dockerfile").write_text(_BASE)
        (context / "pip.conf").write_text(_PIP)
        self.build("localhost/python:suite", context)
        return "localhost/python:suite"

    def context(self, name: str, dockerfile: str) -> Path:
        """A folder with that Dockerfile, and this checkout's wheel beside it."""
        context = self.folder / name
        context.mkdir()
        (context / "Dockerfile").write_text(dockerfile)
        (self.folder / f"{name}-wheel").mkdir()
        shutil.copy(build_wheel(self.folder / f"{name}-wheel"), context)
        return context

    def run_container(self, name: str, image: str, *words: str, options: tuple[str, ...] = ()) -> Running:
        """In the foreground; the suite's torch is there for who asks for PYTHONPATH=/site."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        site = next(path for path in map(Path, sys.path) if path.name == "site-packages")
        return self.start(
            *("podman", "run", "--name", name, "--cgroups", "disabled", "--network", "none", "--interactive"),
            *(
                "--ulimit",
                f"nofile={files}:{files}",
                "--ulimit",
                "nproc=4096:4096",
                "--volume",
                f"{site}:/site:ro",
            ),
            *options,
            *(image, *words),
        )
