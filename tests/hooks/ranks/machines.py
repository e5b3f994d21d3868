"""The machines of a job: each the agent itself, its machine, its socket and its loop, as a service that ends nothing. What
clouds say it is told by the test."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spotguard.agent.core.machine import Machine as Decisions
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, NoticeGone, NoticeSeen, Signalled
from spotguard.agent.ipc.server import Server
from spotguard.agent.loop import Agent
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.notice import Notice, NoticeKind

#: Seconds before a machine's deadline at which its ranks' saves are over, unless a test says otherwise.
RESERVE = 0.5


class Machine:
    """Ranks that were begun with its `socket` are on it.

    Args:
        clock: of the agent; its ranks have the system's.
    """

    def __init__(self, socket: Path, *, reserve: float = RESERVE, clock: Clock | None = None) -> None:
        self.socket = socket
        self._clock = SystemClock() if clock is None else clock
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._server = Server(socket, self._events.put, self._clock)
        facts = AgentFacts("r", os.getpid(), str(socket), True, self._clock.monotonic())
        agent = Agent(
            Decisions(Policy(command=False, reserve=reserve)), self._server, self._clock, self._events, facts
        )
        self._goes = math.inf
        self._thread = threading.Thread(target=agent.run, name="test-agent", daemon=True)

    def __enter__(self) -> Self:
        self._server.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.put(Signalled(signal.SIGTERM))
        self._thread.join(30.0)
        self._server.close()
        assert not self._thread.is_alive()

    def notice(self, seconds: float, id: str = "n") -> None:
        """It goes in so many seconds."""
        now = self._clock.monotonic()
        self._goes = now + seconds
        kind = NoticeKind.PREEMPT
        self._events.put(NoticeSeen(Notice(id, kind, "a test", now + seconds, now, window=seconds)))

    def left(self) -> float:
        """Seconds until it goes."""
        return self._goes - self._clock.monotonic()

    def withdraw(self, id: str = "n") -> None:
        """It stays."""
        self._events.put(NoticeGone(id))

    def outcomes(self) -> list[dict[str, Any]]:
        """What its agent has said of each notice, in order; all of it once that has ended."""
        said = self.socket.with_suffix(".outcomes.jsonl")
        return [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
