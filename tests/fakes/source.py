"""A source of notices that shows what a test says."""

from __future__ import annotations

import threading

from spotguard.providers.health import SEEING
from spotguard.providers.notice import Notice, NoticeKind, Sighting


class FakeSource:
    """Shows `sighting` until told otherwise; counts looks."""

    name = "fake source"

    def __init__(self, *, interval: float = 1.0, withdraws: bool = False) -> None:
        self.interval = interval
        self.longest = 2.0
        self.withdraws = withdraws
        self.sighting: Sighting | Exception = Sighting(SEEING)
        self.looks = 0
        self.closed_by: str | None = None

    def poll(self) -> Sighting:
        self.looks += 1
        if isinstance(self.sighting, Exception):
            raise self.sighting
        return self.sighting

    def close(self) -> None:
        self.closed_by = threading.current_thread().name

    def shows(self, *notices: Notice) -> None:
        self.sighting = Sighting(SEEING, notices)


def a_notice(id: str = "n1", *, deadline: float = 1120.0, seen_at: float = 1000.0) -> Notice:
    return Notice(id, NoticeKind.TERMINATE, "fake source", deadline, seen_at)
