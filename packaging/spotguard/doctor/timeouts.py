"""What may hang is asked on a thread of its own, and waited for no longer than it is worth (as `agent.sources.poller.PollDeadline` does).

A thread that hangs in a file system or a network is left behind: it is a daemon, and ends with the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from spotguard.providers.clock import Clock

T = TypeVar("T")
#: An answer is only given: who takes any takes this one.
T_co = TypeVar("T_co", covariant=True)


class Aside(Generic[T_co]):
    """One question on its way."""

    def __init__(self, ask: Callable[[], T_co], name: str) -> None:
        self._ask = ask
        self._ended = threading.Event()
        self._value: T_co | None = None
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name=f"spotguard-doctor-{name}", daemon=True).start()

    def ended(self, clock: Clock, until: float) -> bool:
        """Wait for the answer until then (monotonic seconds); whether it is there."""
        return clock.wait(self._ended, until - clock.monotonic())

    def value(self) -> T_co:
        """The answer, once it has ended; what was raised is raised here."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # it is T's own None then

    def _run(self) -> None:
        try:
            self._value = self._ask()
        except BaseException as error:  # noqa: BLE001 - raised where the answer is asked for
            self.error = error
        finally:
            self._ended.set()


def within(seconds: float, clock: Clock, ask: Callable[[], T], name: str) -> T:
    """The answer, or what it raised.

    Raises:
        TimeoutError: there is none after so many seconds.
    """
    aside = Aside(ask, name)
    if not aside.ended(clock, clock.monotonic() + seconds):
        raise TimeoutError(f"no answer in {seconds:g} s")
    return aside.value()


def all_within(
    seconds: float, clock: Clock, asked: Sequence[Callable[[], T]], name: str
) -> list[Aside[T] | None]:
    """All at once; None for one that has no answer after so many seconds."""
    until = clock.monotonic() + seconds
    asides = [Aside(ask, f"{name}-{number}") for number, ask in enumerate(asked)]
    return [aside if aside.ended(clock, until) else None for aside in asides]
