"""Let the machine's service agent do the polling: its notices and its sight, as if they were seen here.

A cloud's metadata service is asked once a second for each machine, not for each run on it. When the service
dies, that is said, this run looks for itself at once, and the service is asked again until it is back.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from ..hooks import protocol
from ..hooks.protocol import Message
from ..providers.clock import Clock
from ..providers.errors import ProtocolError
from ..providers.health import SEEING, Health, Reason, Sight, blind
from ..providers.notice import Notice, NoticeKind
from .caller import Caller
from .events import Event, HealthChanged, NoticeGone, NoticeSeen
from .watcher import LONGEST_WAIT, Watcher

logger = logging.getLogger(__name__)

NAME = "service agent"
_FIRST_WAIT = 0.25
_ANSWERS_IN = 2.0


class Relay:
    """A watching connection to a service agent, and watchers of our own while there is none."""

    def __init__(
        self,
        path: Path,
        post: Callable[[Event], None],
        clock: Clock,
        rng: random.Random,
        own: Callable[[], Sequence[Watcher]],
    ) -> None:
        """`own` makes the watchers to be used while the service does not answer; they are started here."""
        self._path = path
        self._post = post
        self._clock = clock
        self._rng = rng
        self._make_own = own
        self._own: Sequence[Watcher] = ()
        self._caller: Caller | None = None
        self._guarded: bool | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="spotguard-relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 0.0) -> None:
        self._stop.set()
        with self._lock:
            if self._caller is not None:
                self._caller.hang_up()
        self._thread.join(timeout)

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._stop.is_set():
            try:
                self._call()
                wait = _FIRST_WAIT
            except (OSError, ProtocolError) as error:
                self._unguarded(str(error))
            self._clock.wait(self._stop, wait * (1 - 0.1 * self._rng.random()))
            wait = min(LONGEST_WAIT, wait * 2)
        self._look_ourselves(False)

    def _call(self) -> None:
        """One connection, from its beginning to its end. Raises what ended it, except our own `stop`."""
        caller = Caller(self._path, protocol.Watch(os.getpid()), _ANSWERS_IN)
        with self._lock:
            self._caller = caller
        try:
            while not self._stop.is_set():
                message = caller.receive(None)
                if message is None:
                    if not self._stop.is_set():
                        self._unguarded("it closed the connection")
                    return
                self._take(message)
        finally:
            with self._lock:
                self._caller = None
            caller.close()

    def _take(self, message: Message) -> None:
        if isinstance(message, protocol.Refused):
            raise ProtocolError(message.reason)
        if self._guarded is not True:
            self._guarded = True
            logger.info("the service agent at %s watches for this run", self._path)
            self._post(HealthChanged(NAME, SEEING, self._clock.monotonic()))
            self._look_ourselves(False)
        if isinstance(message, protocol.NoticeSeen):
            self._post(NoticeSeen(_notice(message, self._clock.monotonic())))
        elif isinstance(message, protocol.NoticeGone):
            self._post(NoticeGone(message.id))
        elif isinstance(message, protocol.HealthSeen) and message.source != NAME:
            self._post(HealthChanged(message.source, _health(message), self._clock.monotonic()))

    def _unguarded(self, why: str) -> None:
        if self._guarded is False or self._stop.is_set():
            return
        self._guarded = False
        logger.warning(
            "the service agent at %s does not answer (%s): looking for notices here", self._path, why
        )
        health = blind("unguarded", f"{self._path}: {why}", "systemctl status spotguard")
        self._post(HealthChanged(NAME, health, self._clock.monotonic()))
        self._look_ourselves(True)

    def _look_ourselves(self, on: bool) -> None:
        for watcher in self._own:
            watcher.stop()
        self._own = self._make_own() if on else ()
        for watcher in self._own:
            watcher.start()


def _notice(said: protocol.NoticeSeen, now: float) -> Notice:
    try:
        kind = NoticeKind(said.kind)
    except ValueError:  # a newer service knows more kinds
        kind = NoticeKind.UNKNOWN
    # Seconds left cross the socket, never more than the kind's own window, so that no word moves a deadline away.
    left = min(max(said.seconds_left, 0.0), max(said.window, 0.0))
    return Notice(said.id, kind, said.source, now + left, now, detail=said.detail, window=said.window)


def _health(said: protocol.HealthSeen) -> Health:
    try:
        sight = Sight(said.sight)
    except ValueError:  # a newer service knows more: whatever it is, it is not seeing
        sight = Sight.BLIND
    if sight is Sight.SEEING:
        return SEEING
    # A reason that this program does not know is shown in the words that came with it.
    reasons: tuple[Reason, ...] = get_args(Reason)
    reason: Reason = said.reason if said.reason in reasons else "unreachable"
    return Health(sight, reason, said.detail, said.advice)
