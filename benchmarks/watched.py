"""One machine of a cloud: its metadata service, its agent, and a command that says when it is told."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from spotguard.agent.ipc import control
from spotguard.providers.clouds.azure.imds import EVENTS_PATH
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator

from .children import child, line


@dataclass(frozen=True, slots=True)
class Cloud:
    """How its notice is looked for."""

    name: str
    service: Callable[[], Any]
    #: How the paths end of the requests that show the notice.
    key: str
    #: Seconds from one look to the next; 0 for a request that is held until there is something to say.
    interval: float
    #: Milliseconds, from a notice that is visible to the hook that is told.
    figure: float


CLOUDS = {
    "aws": Cloud("AWS", AwsSimulator, "spot/instance-action", 1.0, 1020.0),
    "gcp": Cloud("GCP", GcpSimulator, "instance/preempted", 0.0, 50.0),
    # What switches the events on is not asked about here.
    "azure": Cloud("Azure", partial(AzureSimulator, enabling=0.0), EVENTS_PATH, 1.0, 1020.0),
}


class Watched:
    """A context manager: the service answers inside, and the agent guards the command.

    Args:
        folder: its own, made here.
        provider: of `CLOUDS`.
        command: of Python, what is guarded: it says a line when it is ready, and one when it is told.
        service: where it is not the cloud's usual.
        more: options of the agent.
        store: the folder of the checkpoints; by default that of the machine.
    """

    def __init__(
        self,
        folder: Path,
        provider: str,
        *command: str,
        service: Any = None,
        more: Sequence[str] = (),
        store: Path | None = None,
    ) -> None:
        self.cloud = CLOUDS[provider]
        self.simulator = self.cloud.service() if service is None else service
        self._folder = folder
        self._provider = provider
        self._command = command
        self._more = more
        self._store = store or folder
        self._socket = folder / "agent.sock"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir(mode=0o700)
        self._stack.enter_context(self.simulator)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """The agent's."""
        return self._script.pid

    def start(self) -> None:
        """`spotguard run`, which is left to begin in its own time."""
        words = [
            "-m",
            "spotguard",
            "run",
            *self.options(self._socket),
            *self._more,
            "--store",
            self._store.as_uri(),
        ]
        words += ["--run-id", "watched", "--every", "off", "--", sys.executable, *self._command]
        self._script = self._stack.enter_context(child(words, cwd=self._folder, answers=True))

    def options(self, socket: Path) -> list[str]:
        """Those of any agent that watches here."""
        endpoint = self.simulator.endpoint
        return ["--provider", self._provider, "--metadata-endpoint", endpoint, "--socket", str(socket)]

    def ready(self, *, seeing: bool = True) -> None:
        """Wait until the command is, and each source sees."""
        self.line()
        if seeing:
            wait_until_seeing(self._socket)

    def pass_after_look(self, seconds: float) -> None:
        """Let so much time go by after a look; where a request is held, after it is."""
        if self.cloud.interval:
            looks = self.simulator.count(path=self.cloud.key)
            self.simulator.wait_for(looks + 1, path=self.cloud.key, timeout=60)
        elif not self.simulator.wait_for_held(timeout=60):
            raise RuntimeError(f"spotguard run lets {self.simulator.endpoint} hold no request")
        threading.Event().wait(seconds)

    def line(self) -> str:
        """The next line of the command."""
        return line(self._script)

    def read_at(self, after: float) -> float:
        """The instant of the first look that was answered after this one."""
        looks = (
            r for r in self.simulator.requests if r.path.endswith(self.cloud.key) or not self.cloud.interval
        )
        return next(float(look.at) for look in looks if look.at >= after and look.status == 200)

    def end(self) -> None:
        """The command has a group of its own, which a kill of ours does not reach: it ends as it should."""
        if self._script.wait(timeout=60) != 75:
            raise RuntimeError(f"spotguard run ended with {self._script.returncode}, not 75")


def wait_until_seeing(socket: Path) -> None:
    """Until each source of the agent at this socket sees."""
    end = time.monotonic() + 60.0
    while not _seeing(socket):
        if time.monotonic() > end:
            raise RuntimeError(f"the agent at {socket} does not see")
        threading.Event().wait(0.02)


def _seeing(socket: Path) -> bool:
    try:
        sources = control.status(socket)["sources"]
    except control.DeadSocketError:  # it has not come yet
        return False
    return bool(sources) and all(one["sight"] == "seeing" for one in sources)
