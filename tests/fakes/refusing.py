"""A store that refuses for some seconds of a fake clock, and the time that goes by for those who wait for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable

from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import Credentials
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import ManualClock
from tests.fakes.narrow_store import WatchedClock
from tests.fakes.store import FakeStore

#: Real seconds between two looks at whether all threads wait. No test's outcome depends on the figure.
_LOOK = 0.0005
#: Seconds of the clock at once: a thread that is about to wait does not miss more.
_STEP = 0.1
#: Real seconds after which a save counts as hanging.
_PATIENCE = 100.0


class RefusingStore(CalledStore):
    """A store with credentials that refuses some requests.

    Args:
        refusal: returns what a request meets; None: the store's answer.
        renew: called when the chain is asked for newer credentials.
    """

    def __init__(
        self,
        clock: ManualClock,
        refusal: Callable[[Request], StoreError | None],
        *,
        parallel: int = 4,
        renew: Callable[[], object] = lambda: None,
    ) -> None:
        self.below = FakeStore()
        self.below.parallel = parallel
        super().__init__(self.below, self._before)
        self._clock = clock
        self._refusal = refusal
        self._renew = renew
        #: When each refused request came, and its key.
        self.refused: list[tuple[float, str]] = []

    def credentials(self) -> Credentials | None:
        return None

    def renew_credentials(self, *, timeout: float | None = None) -> None:
        self._renew()

    def puts(self) -> list[str]:
        """Return the name of each object that was sent, refused or not."""
        keys = [each.key for each in self.requests if each.verb == "put"]
        return [key.rpartition("/")[2] for key in keys if key.endswith(".safetensors")]

    def _before(self, request: Request) -> None:
        if request.key.endswith(SAVING):  # it comes at any instant beside the objects
            return
        if (error := self._refusal(request)) is not None:
            self.refused.append((self._clock.monotonic(), request.key))
            raise error


def for_a_while(
    clock: ManualClock, seconds: float, make: Callable[[], StoreError]
) -> Callable[[Request], StoreError | None]:
    """Return the refusal of every request until so many seconds from now."""
    until = clock.monotonic() + seconds
    return lambda request: make() if clock.monotonic() < until else None


def as_time_goes_by(
    clock: WatchedClock, *what: Callable[[], object], busy: Callable[[], Iterable[int]] = tuple
) -> None:
    """Run each of these on a thread of its own. The clock moves while all threads wait that have something to do.

    Args:
        busy: returns the other threads that have something to do.
    """
    errors: list[BaseException] = []

    def run(each: Callable[[], object]) -> None:
        try:
            each()
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,), name="saving", daemon=True) for each in what]
    for thread in threads:
        thread.start()

    def all_wait() -> bool:
        running = [thread.ident for thread in threads if thread.is_alive()]
        waiting = clock.waiting()
        others = {*running, *busy()} - waiting
        return clock.all_wait() and all(map(_polls, others))

    never, looks = threading.Event(), int(_PATIENCE / _LOOK)
    while any(thread.is_alive() for thread in threads):
        if all_wait() and not never.wait(_LOOK) and all_wait():
            clock.advance(_STEP)
        else:
            never.wait(_LOOK)
        looks -= 1
        assert looks, "a save hangs"
    if errors:
        raise errors[0]


def _polls(thread: int | None) -> bool:
    """Return whether a thread waits by real time, for a put that lags."""
    frame = sys._current_frames().get(thread or 0)
    if frame is None or frame.f_code is not threading.Condition.wait.__code__:
        return False
    caller = frame.f_back  # an event is waited for by a thread that starts another
    return caller is None or caller.f_code is not threading.Event.wait.__code__
