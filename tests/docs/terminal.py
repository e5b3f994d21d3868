"""What a reader has before him: a folder, a terminal, another one beside it. Nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

TIMEOUT = 120.0  # seconds: the net under a command that hangs

#: The ports that the pages use. Somebody may have them here, so others are typed in their place.
PORTS = ("1338", "9464")


class Terminal:
    """Types the commands of one page, in its folder, with this checkout's `spotguard` first on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = {port: _free_port() for port in PORTS}
        self._status = 0
        self._trainees = 0
        self._beside: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        programs = folder / ".bin"
        programs.mkdir()
        for name, words in {
            "spotguard": "-m spotguard",
            "torchrun": "-m torch.distributed.run",
            "python": "",
            "python3": "",
        }.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (programs / name).chmod(0o755)
        runtime = Path(tempfile.mkdtemp(prefix="docs-", dir=os.environ["XDG_RUNTIME_DIR"]))
        self.env = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(runtime),
            "OMP_NUM_THREADS": "1",
            # As said in docs/how-to/launch/torchrun.md: with many tests on one machine the first worker's port is taken meanwhile (seen).
            # What `run` gives torchrun where nobody says otherwise is tried in `tests/e2e`.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }

    def types(self, command: str, meanwhile: str = "") -> tuple[int, str]:
        """Run a command to its end; its code, and all it said. `$?` is the one before's.

        Args:
            command: as it stands on the page.
            meanwhile: another one, to be typed when this one has said something about a step.
        """
        said, beside = "", ""
        with self._start(f"(exit {self._status})\n{command}") as running:
            for line in _lines(running):
                said += line
                if meanwhile and line.startswith("step "):
                    beside, meanwhile = self._said_by(meanwhile), ""
            self._status = running.wait(TIMEOUT)
        assert not meanwhile, f"{command}: no moment came for {meanwhile}:\n{said}"
        return self._status, said + beside

    def leaves(self, command: str, until: list[str], meanwhile: str = "") -> None:
        """Leave a command running, once it has said these lines. `meanwhile` is typed as in `types`."""
        running = self._start(command)
        self._beside.append(running)
        said = ""
        lines = _lines(running)
        while not follows(until, said):
            line = next(lines, "")
            assert line, f"{command}: never said {until}:\n{said}"
            said += line
            if meanwhile and line.startswith("step "):
                self._said_by(meanwhile)
                meanwhile = ""
        # So that a full pipe never stops it.
        self._readers.append(threading.Thread(target=lambda: list(lines), name="docs-pipe"))
        self._readers[-1].start()

    def trains(self, command: str) -> None:
        """Leave a job running, once it is guarded and has completed a step."""
        self.leaves(command, ["step"])
        self._trainees += 1
        with self._start("spotguard status --watch --json") as watching:
            for line in _lines(watching):
                agents = json.loads(line)["agents"]
                steps = [session["step"] for agent in agents for session in agent.get("sessions", ())]
                if sum(step > 0 for step in steps) >= self._trainees:
                    break
            _end(watching)

    def ends(self) -> None:
        """End what was left running."""
        for running in self._beside:
            _end(running)
        for reader in self._readers:
            reader.join(TIMEOUT)
        for running in self._beside:
            with running:
                pass  # its pipe is closed
        self._beside.clear()
        self._readers.clear()
        self._trainees = 0

    def _start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", self._elsewhere(command)],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _elsewhere(self, command: str) -> str:
        return re.sub("|".join(self._ports), lambda found: self._ports[found[0]], command)

    def _said_by(self, command: str) -> str:
        with self._start(command) as running:
            said, _ = running.communicate(timeout=TIMEOUT)
        assert running.returncode == 0, said
        return said


def follows(expected: list[str], said: str) -> bool:
    """Whether the expected lines are found in what was said, in their order."""
    lines = iter([_plain(line) for line in said.splitlines()])
    return all(any(_matches(_plain(wanted), line) for line in lines) for wanted in expected)


def _matches(wanted: str, line: str) -> bool:
    return re.search(".*".join(map(re.escape, re.split(r" ?… ?", wanted))), line) is not None


def _plain(line: str) -> str:
    """Without what differs from one time to the next: numbers, their units, and how wide a column is."""
    line = re.sub(r"-[0-9a-f]{8}\b", "-0", line)  # a run id's hash
    line = re.sub(r"\d+(?:[.:-]\d+)*", "0", line)
    line = re.sub(r"\b0 (?:B|KiB|MiB|GiB)\b", "0 B", line)
    return " ".join(line.split())


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _end(running: subprocess.Popen[str]) -> None:
    """With everything it has started: it leads a session of its own; the guarded command leads another group."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGINT)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait(TIMEOUT)


def _lines(running: subprocess.Popen[str]) -> Iterator[str]:
    assert running.stdout is not None
    return iter(running.stdout)
