"""One spot machine of a whole-path test: real processes, real pipes, a real store, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.ipc import control
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.processes import Running, eventually, removed


class Machine:
    """A folder, a place for sockets, and every process that was started here or by those that were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.url = self.store.as_uri()
        # A socket's path holds 107 bytes: below the session's short folder, not below pytest's own.
        self.runtime = Path(tempfile.mkdtemp(dir=os.environ["XDG_RUNTIME_DIR"]))
        self._mark = f"E2E_MACHINE={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.env = {
            **os.environ,
            name: value,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "OMP_NUM_THREADS": "1",
            "SPOTGUARD_LOG_LEVEL": "debug",  # tests wait for the stages of a save
            "SPOTGUARD_KERNEL_LOG": str(folder / "kernel-log"),  # the kernel's tells what other tests do
            "PYTHONUNBUFFERED": "1",
        }
        self._started: list[Running] = []
        #: Where other processes see the file system, and the words that make a command one of them.
        self._view = ""
        self._prefix: tuple[str, ...] = ()
        self._cgroup: Path | None = None

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
        words = f"--run-id job --store {self.url} --provider {watch} {options}".split()
        return self.spotguard("run", *words, "--", *command, **env)

    def mount_store(self, size: str) -> Running:
        """A small disk for the store, which only processes of this machine see, and which goes with them."""
        self.store.mkdir()
        mount = f"mount -t tmpfs -o size={size} tmpfs {self.store} && echo mounted && read end"
        holder = self.start("unshare", "--mount", "sh", "-c", mount)
        holder.out.until("^mounted$")
        self.enter(holder, "nsenter", "--mount")
        return holder

    def limit_memory(self, nbytes: int) -> None:
        """A cgroup with this memory limit for what is started from now on; the test is skipped where none can be made."""
        membership = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in _lines("/proc/self/cgroup")}
        version, path = (
            ("v1", membership["memory"]) if "memory" in membership else ("v2", membership.get("", "/"))
        )
        root = Path("/sys/fs/cgroup", "memory" if version == "v1" else "")
        folder = root / path.lstrip("/") / f"spotguard-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            self._cgroup = folder
            name = "memory.limit_in_bytes" if version == "v1" else "memory.max"
            (folder / name).write_text(str(nbytes))
            del self.env["SPOTGUARD_KERNEL_LOG"]  # what is killed there is this machine's
        except OSError as error:
            pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
        self._prefix = ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")

    def enter(self, holder: Running, *words: str) -> None:
        """What is started from now on sees what `holder` sees; `words` are `nsenter` and the namespaces."""
        self._view = f"/proc/{holder.pid}/root"
        self._prefix = (*words, f"--target={holder.pid}", f"--wd={self.folder}")

    # --- asking ---

    def view(self, path: Path) -> Path:
        """The path as this machine's processes see it."""
        return Path(f"{self._view}{path}")

    def socket(self, run_id: str = "job") -> Path:
        return self.runtime / "spotguard" / f"{run_id}.sock"

    def status(self, run_id: str = "job") -> dict[str, Any]:
        return control.status(self.socket(run_id))

    def sessions(self, run_id: str = "job") -> int:
        """How many training processes the agent guards; -1 where none listens (a killed one leaves its socket)."""
        try:
            return len(self.status(run_id)["sessions"])
        except control.AgentError:
            return -1

    def outcome(self, run_id: str = "job") -> dict[str, Any]:
        """The newest record beside the socket. The agent says an outcome first, and a thread of it writes the file."""
        path = self.socket(run_id).with_suffix(".outcome.json")
        eventually(path.exists, f"no outcome in {path}")
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def outcomes_in_store(self, run_id: str = "job") -> list[dict[str, Any]]:
        return [json.loads(p.read_text()) for p in sorted(self.store.glob(f"{run_id}/outcomes/*.json"))]

    def committed(self, run_id: str = "job") -> list[tuple[int, int, int]]:
        """(attempt, step, save) of what the store holds whole, oldest first, read from the names alone.

        With one rank, a checkpoint is whole from the instant at which its manifest is there.
        """
        return in_order(
            p.parent.name for p in self.view(self.store).glob(f"{run_id}/checkpoints/*/00000-of-00001.json")
        )

    def outlast_announcements(self) -> None:
        """Let the deadline of each announced save be over: a start would wait for it, 20 s in each life of a test."""
        for path in self.view(self.store).glob("*/checkpoints/*/SAVING.json"):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, (1, 1))

    # --- ending ---

    def kill(self, pid: int) -> None:
        """SIGKILL to a process of this machine."""
        assert pid in self._mine()
        os.kill(pid, signal.SIGKILL)

    def power_off(self) -> None:
        """SIGKILL to everything that was started here, by whomever, each by its own number."""
        for running in self._started:
            if running.running:
                running.kill()
        for pid in list(self._mine()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything, and say what it was."""
        self.power_off()
        for running in self._started:
            running.close()
            print(running.account())  # pytest shows it for a test that failed
        if self._cgroup is not None:
            cgroup = self._cgroup
            eventually(lambda: removed(cgroup), f"a process is left in {cgroup}")

    def _mine(self) -> Iterator[int]:
        """Processes that inherited this machine's mark, orphans included."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                    if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def in_order(names: Iterable[str]) -> list[tuple[int, int, int]]:
    """(attempt, step, save) of the folders of checkpoints, oldest first."""
    parts = [tuple(map(int, name.split("-"))) for name in names]
    return sorted((attempt, step, save) for step, attempt, save in parts)
