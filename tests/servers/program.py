"""A real server as a test holds it: on loopback ports of the kernel's choice, its data in memory, always ended.

Nothing here sleeps for a guessed time: `start` asks the server until it answers, and fails with the server's own
last words when it ends instead.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

KEEPER = Path(__file__).with_name("keeper.py")
ROOT = Path(__file__).parents[2]

#: Where `make servers` puts programs, looked at before PATH.
INSTALLED = (ROOT / ".servers/venv/bin", ROOT / ".servers/node/node_modules/.bin")

#: tmpfs where there is one: a disk would be what the tests measure and wait for.
_MEMORY = Path("/dev/shm")

TIMEOUT = 180.0  # seconds: a net under a server that never answers


def find(program: str) -> str | None:
    """The path of a program that `make servers` installs."""
    places = [str(place) for place in INSTALLED]
    # Debian has nginx in /usr/sbin, which is not on everybody's PATH.
    return shutil.which(program, path=os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/sbin"]))


class Server:
    """One or more programs that are one service. A subclass says what to run and when it answers.

    Entering starts it; leaving ends every process of it, and removes the folder.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._held: list[socket.socket] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        #: The service's own, gone when it ends. Its output is in `log`.
        self.folder = Path()
        #: Where it listens, from its start on.
        self.endpoint = ""

    def commands(self) -> Sequence[Sequence[str]]:
        """What to run in `folder`, in order; called once, when the folder is there."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """What the programs see beyond a PATH and a HOME."""
        return {}

    def answers(self) -> bool:
        """Whether requests are served by now. May raise OSError while nobody listens."""
        raise NotImplementedError

    def environ_at(self, endpoint: str) -> dict[str, str]:
        """The conventional variables by which an SDK finds this store at `endpoint`: its own, or a proxy's before it."""
        raise NotImplementedError

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which an SDK finds this store."""
        return self.environ_at(self.endpoint)

    def fresh(self) -> str:
        """The URL of a new bucket or container with nothing in it, without a slash at its end."""
        raise NotImplementedError

    def port(self) -> int:
        """A port that stays this server's: bound here and never listening, so that the kernel gives it to no outgoing
        connection, while a program that sets SO_REUSEADDR, as servers do, may bind and listen on it (socket(7))."""
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self._held.append(holder)
        number: int = holder.getsockname()[1]
        return number

    def start(self) -> Self:
        """Run the commands, and wait until the service answers."""
        memory = str(_MEMORY) if _MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"sg-{self.name}-", dir=memory))
        self.folder.chmod(0o755)  # some drop root and must still read it
        try:
            commands = json.dumps([list(words) for words in self.commands()])
            with (self.folder / "log").open("wb") as log:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(KEEPER), str(self.folder), commands],
                    # Nothing of the suite's own: PYTHONPATH would give these programs our packages.
                    env={
                        "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin",
                        "HOME": str(self.folder),
                        "TMPDIR": str(self.folder),
                        "LC_ALL": "C.UTF-8",
                        **self.environment(),
                    },
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.until(self.answers, "it never answered")
        except BaseException:  # whatever it was, nothing of it stays behind
            self.stop()
            raise
        return self

    def until(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Ask until it is so; fail with the log when the programs end or time is over."""
        never, end = threading.Event(), time.monotonic() + TIMEOUT
        log = (self.folder / "log").open("rb")  # open, so that it can be read when the keeper has removed it
        with log:
            while True:
                try:
                    if condition():
                        return
                except OSError:  # nobody listens yet: requests' errors are OSErrors too
                    pass
                gone = self._keeper is None or self._keeper.poll() is not None
                if gone or time.monotonic() > end:
                    said = log.read()[-4000:].decode(errors="replace")
                    raise AssertionError(f"{self.name}: {'it ended' if gone else otherwise}:\n{said}")
                never.wait(0.02)

    def stop(self) -> None:
        """End every process; stopping twice is stopping once."""
        if self._keeper is not None:
            self._keeper.terminate()
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait(TIMEOUT)
            self._keeper = None
        for holder in self._held:
            holder.close()
        self._held.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
