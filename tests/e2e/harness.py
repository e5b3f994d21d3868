"""One spot machine of a whole-path test: real processes, real pipes, a real store, and nothing left behind.

Nothing here sleeps: a test waits for a line, for the end of a process, or for a file that a line has announced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from spotguard.agent import control
from spotguard.providers.simulator.aws import AwsSimulator

TIMEOUT = 60.0  # seconds: a net under a hung test, never something a passing test waits for


def eventually(condition: Callable[[], object], what: str, timeout: float = TIMEOUT) -> None:
    """Ask again until it is so, where nothing announces it."""
    never, end = threading.Event(), time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"{what}: not in {timeout} s"
        never.wait(0.01)


class Lines:
    """What a pipe says, read by a thread of its own so that nobody is ever stopped by a full one."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        #: What the process said elsewhere, for whoever reads why a test failed.
        self.beside: Lines | None = None
        self._change = threading.Condition()
        self._data = bytearray()
        self._read_so_far = 0
        self._found: re.Match[str] | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._pipe.fileno(), 65536):
            with self._change:
                self._data += chunk
                self._change.notify_all()
        with self._change:
            self._ended = True
            self._change.notify_all()

    @property
    def data(self) -> bytes:
        """Every byte so far."""
        with self._change:
            return bytes(self._data)

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    def until(self, pattern: str, timeout: float = TIMEOUT) -> re.Match[str]:
        """Read on to the next line in which `pattern` is found, and past it.

        Raises:
            AssertionError: it did not come in time, or never will, because everybody who could say it is gone.
        """
        with self._change:
            self._change.wait_for(lambda: self._take(pattern) or self._ended, timeout)
            found, self._found = self._found, None
        beside = self.beside.text if self.beside is not None else ""
        assert found is not None, f"no {pattern!r} (ended: {self._ended}) in:\n{self.text}\nbeside:\n{beside}"
        return found

    def _take(self, pattern: str) -> bool:
        while (end := self._data.find(b"\n", self._read_so_far)) >= 0:
            line = self._data[self._read_so_far : end].decode()
            self._read_so_far = end + 1
            if (found := re.search(pattern, line)) is not None:
                self._found = found
                return True
        return False

    def to_the_end(self, timeout: float = TIMEOUT) -> str:
        """Everything, once everybody who could write is gone."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"somebody still holds the pipe after:\n{self.text}"
        return self.text

    def close(self) -> None:
        self._thread.join(TIMEOUT)
        self._pipe.close()


class Running:
    """A process of the test, with its three pipes."""

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own: no terminal of whoever runs the tests is within reach.
        self._popen = subprocess.Popen(
            words, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.pid = self._popen.pid
        self.out, self.err = Lines(self._popen.stdout), Lines(self._popen.stderr)
        self.out.beside, self.err.beside = self.err, self.out

    def say(self, line: str) -> None:
        """One line to its stdin, which is the guarded command's too."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    def hush(self) -> None:
        """Nothing more comes on stdin."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def send(self, signum: int) -> None:
        self._popen.send_signal(signum)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def ended(self, timeout: float = TIMEOUT) -> int:
        """Its exit code, as `subprocess` has it."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {timeout} s:\n{self.out.text}{self.err.text}") from None

    def close(self) -> None:
        if self.running:
            self.kill()
        self._popen.wait(TIMEOUT)
        assert self._popen.stdin is not None
        with contextlib.suppress(
            BrokenPipeError
        ):  # what it did not read before it ended is lost, as it should
            self._popen.stdin.close()
        self.out.close()
        self.err.close()


class Machine:
    """A folder, a place for sockets, and every process that was started here or by those that were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        # A socket's path holds 107 bytes: below the session's short folder, not below pytest's own.
        self.runtime = Path(tempfile.mkdtemp(dir=os.environ["XDG_RUNTIME_DIR"]))
        self._mark = f"E2E_MACHINE={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.env = {
            **os.environ,
            name: value,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._started: list[Running] = []
        #: Where other processes see the file system, and the words that make a command one of them.
        self._view = ""
        self._prefix: tuple[str, ...] = ()

    # --- starting ---

    def start(self, *words: str, **env: str) -> Running:
        running = Running([*self._prefix, *words], self.folder, {**self.env, **env})
        self._started.append(running)
        return running

    def spotguard(self, *words: str, **env: str) -> Running:
        return self.start(sys.executable, "-m", "spotguard", *words, **env)

    def run(self, options: str, *command: str, aws: AwsSimulator | None = None, **env: str) -> Running:
        """`spotguard run` as run "job", with this machine's store, watching `aws` where there is one."""
        watch = f"aws --metadata-endpoint {aws.endpoint}" if aws is not None else "none"
        words = f"--run-id job --store {self.store.as_uri()} --provider {watch} {options}".split()
        return self.spotguard("run", *words, "--", *command, **env)

    def mount_store(self, size: str) -> Running:
        """A small disk for the store, which only processes of this machine see, and which goes with them."""
        self.store.mkdir()
        mount = f"mount -t tmpfs -o size={size} tmpfs {self.store} && echo mounted && read end"
        holder = self.start("unshare", "--mount", "sh", "-c", mount)
        holder.out.until("^mounted$")
        self._view = f"/proc/{holder.pid}/root"
        self._prefix = ("nsenter", f"--target={holder.pid}", "--mount", f"--wd={self.folder}")
        return holder

    # --- asking ---

    def view(self, path: Path) -> Path:
        """The path as this machine's processes see it."""
        return Path(f"{self._view}{path}")

    def socket(self, run_id: str = "job") -> Path:
        return self.runtime / "spotguard" / f"{run_id}.sock"

    def status(self, run_id: str = "job") -> dict[str, Any]:
        return control.status(self.socket(run_id))

    def outcome(self, run_id: str = "job") -> dict[str, Any]:
        """The newest record beside the socket."""
        record: dict[str, Any] = json.loads(self.socket(run_id).with_suffix(".outcome.json").read_text())
        return record

    def outcomes_in_store(self, run_id: str = "job") -> list[dict[str, Any]]:
        return [json.loads(p.read_text()) for p in sorted(self.store.glob(f"{run_id}/outcomes/*.json"))]

    def committed(self, run_id: str = "job") -> list[tuple[int, int, int]]:
        """(attempt, step, save) of what the store holds whole, oldest first, read from the names alone.

        With one rank, a checkpoint is whole from the instant at which its manifest is there.
        """
        names = [
            p.parent.name for p in self.view(self.store).glob(f"{run_id}/checkpoints/*/00000-of-00001.json")
        ]
        parts = [tuple(map(int, name.split("-"))) for name in names]
        return sorted((attempt, step, save) for step, attempt, save in parts)

    # --- ending ---

    def kill(self, pid: int) -> None:
        """SIGKILL to a process of this machine."""
        assert pid in self._mine()
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything that was started here, by whomever, each by its own number."""
        for running in self._started:
            if running.running:
                running.kill()
        for pid in list(self._mine()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for running in self._started:
            running.close()

    def _mine(self) -> Iterator[int]:
        """Processes that inherited this machine's mark, orphans included."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                    if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)
