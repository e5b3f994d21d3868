"""A job under a guard, what its guard tells the agent, and the agent's notice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.providers.stores.base import BlobStore
from tests.fakes.clock import ManualClock
from tests.fakes.training import Job, Make, different, guarded, small, step_on, trajectory
from tests.fakes.watched_store import PATIENCE

#: Steps of the whole training, of which `trained` has done the first few.
TOTAL = 5


class Heard:
    """What the agent would have been told: messages, in order, and a way to wait for one."""

    def __init__(self, guard: Guard) -> None:
        self.messages: list[protocol.Message] = []
        self._changed = threading.Condition()
        guard._report._send = self._take

    def _take(self, message: protocol.Message, *, droppable: bool = False) -> bool:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        return True

    def wait(self, kind: type[protocol.Message], count: int = 1) -> Any:
        """The newest of so many messages of this kind."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE), self.messages
            return self.of(kind)[-1]

    def ends(self, timeout: float) -> bool:
        """Whether the agent hears within so many real seconds what became of a save."""
        with self._changed:
            told = (protocol.Committed, protocol.Failed)
            return self._changed.wait_for(
                lambda: any(isinstance(message, told) for message in self.messages), timeout
            )

    def of(self, kind: type[protocol.Message]) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


@contextmanager
def trained(
    store: BlobStore, steps: int = 2, clock: ManualClock | None = None, make: Make = small
) -> Iterator[tuple[Guard, Job, Heard]]:
    """A job that stands after so many steps, its guard, and what the guard tells."""
    job = make()
    with guarded(store, job.values, clock=clock) as guard:
        heard = Heard(guard)
        guard.restore()
        step_on(guard, job, *range(steps))
        yield guard, job, heard


def go_on(guard: Guard, job: Job, begun: int = 2) -> None:
    """Train to the end, and see that every bit is as if nothing had been."""
    step_on(guard, job, *range(begun, TOTAL))
    assert different(job.bits(), trajectory(small, TOTAL)[TOTAL]) == []


def notice(
    id: str = "n1", seconds: float = 60.0, reserve: float = 3.0, drill: bool = False
) -> protocol.Preempt:
    return protocol.Preempt(id, seconds, reserve, "terminate", "test", drill)
