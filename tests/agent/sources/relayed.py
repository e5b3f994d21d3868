"""A relay of the service agent's words, and what a service says to it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotguard.agent.events import Event, HealthChanged
from spotguard.agent.sources.poller import Poller
from spotguard.agent.sources.remote import RemoteFeed
from spotguard.hooks.ipc import protocol
from spotguard.providers.clock import SystemClock
from spotguard.providers.health import Sight
from spotguard.providers.notice import Notice
from tests.fakes.serving import Events
from tests.fakes.source import FakeSource

WATCHED = protocol.Watched(1)
SEEING = protocol.FeedHealth("aws", "seeing", "", "", "", 0.0)
NEVER = threading.Event()


class Relayed:
    """A relay, what it posts, and the sources that it looks through when it has to look itself."""

    def __init__(self, path: Path, *, any_source: bool = True, withdraws: bool = False, **more: Any) -> None:
        self.events = Events()
        self.clock = SystemClock()
        self.any_source, self.withdraws = any_source, withdraws
        #: What stands where our own sources look.
        self.stands: tuple[Notice, ...] = ()
        self.own: list[FakeSource] = []
        post = self.events.queue.put
        self.relay = RemoteFeed(path, post, self.clock, random.Random(1), self._followers, **more)
        self.relay.start()

    def _followers(self, post: Callable[[Event], None]) -> list[Poller]:
        if not self.any_source:
            return []
        self.own.append(FakeSource(interval=0.01, withdraws=self.withdraws))
        self.own[-1].shows(*self.stands)
        return [Poller(self.own[-1], post, self.clock, random.Random(1))]

    def health(self, source: str, sight: Sight) -> HealthChanged:
        return self.events.next(HealthChanged, lambda e: e.source == source and e.health.sight is sight)
