"""A receiver of alerts on loopback: it keeps what it is sent, and answers as the test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.processes import eventually
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.fakes.talk import TIMEOUT


class Webhook:
    """The receiver. `statuses` are those of the next answers, then each is a 200; `hangs` keeps answers back."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        self.hangs, self.release = threading.Event(), threading.Event()
        self.server = AnsweringServer(self._answer)
        self.url = self.server.url

    def _answer(self, _: Asked) -> Answer:
        if self.hangs.is_set():
            self.release.wait(TIMEOUT)
        return Answer(self.statuses.pop(0) if self.statuses else 200, self.headers)

    @property
    def got(self) -> list[Any]:
        """The bodies so far."""
        return [json.loads(asked.body) for asked in list(self.server.asked)]

    def until(self, count: int) -> list[Any]:
        """Wait for so many bodies, and return them."""
        eventually(lambda: len(self.server.asked) >= count, f"{count} messages")
        return self.got


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A receiver for one test."""
    receiver = Webhook()
    with receiver.server:
        try:
            yield receiver
        finally:
            receiver.release.set()
