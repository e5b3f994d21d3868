"""Whom the saving thread tells how its saves go."""

from __future__ import annotations

from typing import Protocol

from .alarm import Alarm
from .saved import Saved


class Listener(Protocol):
    """Who hears how an emergency save goes: the agent, through the client."""

    def progress(self, alarm: Alarm, phase: str, step: int, done: int, total: int) -> None: ...

    def committed(self, alarm: Alarm, saved: Saved) -> None: ...

    def failed(self, alarm: Alarm, reason: str, last_step: int) -> None: ...

    def checkpointed(self, saved: Saved) -> None: ...
