"""Several writers of one store, of whom one at a time does one request: which one, a seeded die says.

So two processes meet in every order of their requests, and the same order comes again from the same seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request

T = TypeVar("T")

#: Seconds after which a wait between threads counts as a hang.
PATIENCE = 100.0


class Turns:
    """Runs actors on a thread each, and lets one go on whenever all of them wait for their turn."""

    def __init__(self, store: BlobStore, seed: int) -> None:
        self.store = store
        self._dice = random.Random(seed)
        self._change = threading.Condition()
        #: Who is between two requests, and who waits to do the next.
        self._busy: set[str] = set()
        self._waiting: set[str] = set()
        self._turn = ""
        self._failed: list[BaseException] = []
        #: (who, verb, key), in the order in which it was done.
        self.done: list[tuple[str, str, str]] = []

    def run(self, actors: Mapping[str, Callable[[BlobStore], None]]) -> None:
        """Until all are through; what one of them raised comes out here."""
        self._busy = set(actors)
        threads = [
            threading.Thread(target=self._act, args=(name, actor), name=name)
            for name, actor in actors.items()
        ]
        for thread in threads:
            thread.start()
        with self._change:
            while True:
                assert self._change.wait_for(lambda: not self._busy and not self._turn, PATIENCE), self._busy
                if not self._waiting:
                    break
                self._turn = self._dice.choice(sorted(self._waiting))
                self._change.notify_all()
        for thread in threads:
            thread.join(PATIENCE)
        if self._failed:
            raise self._failed[0]

    def take(self, name: str, request: Request, act: Callable[[], T]) -> T:
        """One request of `name`'s, when it is its turn."""
        with self._change:
            self._busy.discard(name)
            self._waiting.add(name)
            self._change.notify_all()
            assert self._change.wait_for(lambda: self._turn == name, PATIENCE)
            self._waiting.discard(name)
            self._busy.add(name)
            self._turn = ""
            self.done.append((name, request.verb, request.key))
            return act()

    def _act(self, name: str, actor: Callable[[BlobStore], None]) -> None:
        try:
            actor(InTurn(self, name))
        except BaseException as error:  # noqa: BLE001 - `run` raises it on the test's own thread
            self._failed.append(error)
        with self._change:
            self._busy.discard(name)
            self._change.notify_all()


class InTurn(CalledStore):
    """The store as one of the actors has it."""

    def __init__(self, turns: Turns, name: str) -> None:
        super().__init__(turns.store)
        self.parallel = 1
        self._turns = turns
        self._name = name

    def through(self, request: Request, effect: Callable[[], T]) -> T:
        return self._turns.take(self._name, request, effect)
