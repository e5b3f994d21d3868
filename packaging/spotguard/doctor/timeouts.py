"""Calls that may hang, each on a thread of its own and with a timeout (as in `agent.sources.poller.PollDeadline`).

The doctor abandons a thread that hangs in a file system or a network. The thread is a daemon and ends with the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from spotguard.providers.clock import Clock

T = TypeVar("T")
#: Covariant, because an `Aside` only returns its answer.
T_co = TypeVar("T_co", covariant=True)


class Aside(Generic[T_co]):
    """One call in progress, on a thread of its own."""

    def __init__(self, ask: Callable[[], T_co], name: str) -> None:
        self._ask = ask
        self._ended = threading.Event()
        self._value: T_co | None = None
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name=f"spotguard-doctor-{name}", daemon=True).start()

    def ended(self, clock: Clock, until: float) -> bool:
        """Wait for the answer until `until` (monotonic seconds), and report whether it is there."""
        return clock.wait(self._ended, until - clock.monotonic())

    def value(self) -> T_co:
        """Return the answer of a call that has ended, or raise what the call raised."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # a None is then the call's own answer

    def _run(self) -> None:
        try:
            self._value = self._ask()
        except BaseException as error:  # noqa: BLE001 - `value` raises it
            self.error = error
        finally:
            self._ended.set()


def within(seconds: float, clock: Clock, ask: Callable[[], T], name: str) -> T:
    """Return the answer of `ask`, or raise what it raised.

    Raises:
        TimeoutError: there is no answer after `seconds`.
    """
    aside = Aside(ask, name)
    if not aside.ended(clock, clock.monotonic() + seconds):
        raise TimeoutError(f"no answer in {seconds:g} s")
    return aside.value()


def all_within(
    seconds: float, clock: Clock, asked: Sequence[Callable[[], T]], name: str
) -> list[Aside[T] | None]:
    """Run all calls at once. Return each call, or None for one that has no answer after `seconds`."""
    until = clock.monotonic() + seconds
    asides = [Aside(ask, f"{name}-{number}") for number, ask in enumerate(asked)]
    return [aside if aside.ended(clock, until) else None for aside in asides]
