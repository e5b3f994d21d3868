"""How the tests of GCP's notices look."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spotguard.providers.clouds.gcp.long_poll import HANG
from spotguard.providers.clouds.gcp.metadata import GcpMetadata
from spotguard.providers.clouds.gcp.preempted import PreemptedAtOnce, PreemptedPlainly, PreemptedState
from spotguard.providers.notice import Notice, NoticeSource, Sighting
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.providers.clouds.blindness import EVERYWHERE

#: In the query of a hanging GET, and in no other's.
HELD = f"timeout_sec={HANG:.0f}"

#: By fault of the simulated service: the reason that a source gives, whatever key it asks for.
BLIND = EVERYWHERE | {
    "403": "forbidden",
    "404-unsigned": "wrong-server",
    "garbage": "garbage",
    "flavor": "wrong-server",
    "foreign": "wrong-server",
}


@contextmanager
def at_once(
    vm: GcpSimulator,
    *,
    preemption: PreemptedState | None = None,
    timeout: float = 10.0,
    longest: float = 60.0,
) -> Iterator[PreemptedAtOnce]:
    """The hanging GET, on the VM's own clock."""
    metadata = GcpMetadata(vm.endpoint, timeout=timeout, longest=longest)
    source = PreemptedAtOnce(metadata, vm.clock, preemption or PreemptedState(vm.clock))
    yield source
    source.close()


@contextmanager
def plainly(
    vm: GcpSimulator, *, preemption: PreemptedState | None = None, timeout: float = 10.0
) -> Iterator[PreemptedPlainly]:
    """The plain GET beside it."""
    source = PreemptedPlainly(
        GcpMetadata(vm.endpoint, timeout=timeout), vm.clock, preemption or PreemptedState(vm.clock)
    )
    yield source
    source.close()


class Looking:
    """One look on a thread of its own, which may be held."""

    def __init__(self, source: NoticeSource) -> None:
        self._source = source
        self._seen: list[Sighting] = []
        self._thread = threading.Thread(target=lambda: self._seen.append(source.poll()), name="looking")
        self._thread.start()

    def seen(self) -> Sighting:
        """Wait for what it shows."""
        self._thread.join(100)
        assert self._seen, "the look is held still"
        return self._seen[0]


def the_notice(sighting: Sighting) -> Notice:
    assert sighting.health.seeing, sighting.health
    (notice,) = sighting.notices
    return notice
