"""How long ranks wait for each other's offers, and for a step to end: a part of what the save has left, and never long at a stall."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.consensus.vote import Decision
from spotguard.hooks.control.gate_rule import GateRule
from spotguard.hooks.control.quiesce import Quiescence
from spotguard.hooks.ipc import protocol
from spotguard.hooks.ipc.notice import PreemptionNotice
from spotguard.hooks.save.request import SaveRequest, SaveSpec
from spotguard.hooks.state.device.events import Fence
from tests.fakes.clock import ManualClock


class Deaf:
    """Ranks that never answer. It keeps the seconds for which it was to wait."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.waits: list[float] = []

    def decide(
        self,
        job: SaveRequest,
        step: int | None,
        left: Callable[[], float],
        over: Callable[[], bool],
        *,
        boundary: bool,
        parks: bool,
    ) -> Decision:
        self.waits.append(left())
        self.clock.advance(left())
        assert left() == 0.0
        return Decision(1, None, "nobody has answered")


@pytest.mark.parametrize(
    ("window", "waits"), [(10.0, 4.0), (1.0, 0.4), (25.0, 10.0), (120.0, 10.0), (None, 10.0)]
)
def test_offers_have_four_tenths_of_what_is_left(window: float | None, waits: float) -> None:
    """The other six are for the save. Ranks that are silent for 10 s are dead, however much is left."""
    clock = ManualClock()
    deaf: Any = Deaf(clock)
    nothing: Any = None
    still = Quiescence(nothing, nothing, nothing, lambda: False, deaf)
    until = None if window is None else clock.monotonic() + window
    with pytest.raises(Abandoned, match="nobody has answered"):
        still.refuse(SaveRequest("emergency", CancelScope(clock, until)))
    assert deaf.waits == pytest.approx([waits])


class Hanging:
    """A gate whose training thread hangs in the middle of a step. It keeps the seconds for which it was to wait."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.waits: list[float] = []

    def close(self, *_: object, awaited: bool = False) -> GateRule:
        return GateRule(completed=4)

    def wait_steady(self, left: Callable[[], float], give_up: Callable[[], bool]) -> None:
        self.waits.append(left())
        self.clock.advance(left())
        assert left() == 0.0
        assert not give_up()


class Behind:
    """A state whose devices hold no boundary that the host has passed, or the one before the last."""

    taken = 9

    def __init__(self, held: object = None) -> None:
        self._held = held

    def device_boundary(self) -> object:
        return self._held


class Ahead:
    """Ranks that have stepped, and agree on their step. It keeps the ways in which this rank failed them."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def decide(self, *_: object, boundary: bool, parks: bool) -> Decision:
        return Decision(1, 5)

    def failed(self, job: SaveRequest, why: str) -> None:
        self.failures.append(why)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("kind", "waits"), [(protocol.STALL, 10.0), ("terminate", 600.0)])
def test_a_step_that_hangs_is_not_waited_for_longer_than_ranks_are(
    kind: str, waits: float, ranks: int
) -> None:
    """A step does end before a machine goes, and then the whole window is there for it. The other ranks learn of it, and save."""
    clock = ManualClock()
    gate: Any = Hanging(clock)
    state: Any = type("Unmarked", (Behind,), {"monitor": type("Monitor", (), {"unmarked": ""})})()
    others: Any = Ahead() if ranks > 1 else None
    nothing: Any = None
    notice = PreemptionNotice.received(
        protocol.Preempt("one", 600.0, 0.0, kind, "spotguard"), clock.monotonic()
    )
    job = SaveRequest("emergency", CancelScope(clock, clock.monotonic() + 600.0), notice)
    why = "in the middle of a step" if kind == protocol.STALL else "out of time"
    with pytest.raises(Abandoned, match=why):
        Quiescence(gate, state, nothing, lambda: False, others).stand(job, False)
    assert gate.waits == pytest.approx([waits])
    if others is not None:
        assert len(others.failures) == (kind == protocol.STALL)


class Standing:
    """A gate whose training thread stands at a boundary."""

    def close(self, *_: object, awaited: bool = False) -> GateRule:
        return GateRule(completed=5)

    def wait_steady(self, left: Callable[[], float], give_up: Callable[[], bool]) -> int:
        return 5


class Passing(ManualClock):
    """Time passes, by a second, where a thread waits."""

    def wait(self, event: threading.Event, timeout: float) -> bool:
        self.advance(1.0)
        return event.is_set()


class NeverThere:
    """An event of a device that hangs before it."""

    def query(self) -> bool:
        return False


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("kind", "seconds"), [(protocol.STALL, 10.0), ("terminate", 15.0)])
def test_a_device_that_hangs_before_the_boundary_is_not_waited_for_at_a_stall(
    kind: str, seconds: float, ranks: int
) -> None:
    """The host had launched more steps. A machine that goes has its whole window for the device to come there."""
    import torch

    clock = Passing()
    fence = Fence(lambda device, held: NeverThere())
    fence.cover([torch.device("cuda", 0)])
    fence.record()
    gate: Any = Standing()
    state: Any = type("State", (Behind,), {"fence": fence})()
    nothing: Any = None
    notice = PreemptionNotice.received(
        protocol.Preempt("one", 15.0, 0.0, kind, "spotguard"), clock.monotonic()
    )
    begun = clock.monotonic()
    job = SaveRequest("emergency", CancelScope(clock, begun + 15.0), notice)
    why = "a device stands in a step before" if kind == protocol.STALL else "out of time"
    others: Any = Ahead() if ranks > 1 else None
    with pytest.raises(Abandoned, match=why):
        Quiescence(gate, state, nothing, lambda: False, others).stand(job, False)
    assert clock.monotonic() - begun == pytest.approx(seconds, abs=1.0)
    if others is not None:
        assert len(others.failures) == (kind == protocol.STALL)


class Agreeing:
    """Ranks that agree on the step that this one offers."""

    def __init__(self) -> None:
        self.offers: list[int] = []

    def decide(self, job: object, step: int, *_: object, boundary: bool, parks: bool) -> Decision:
        assert not boundary
        assert not parks
        self.offers.append(step)
        return Decision(1, step)

    def agreed(self, job: object, decision: object, step: int) -> SaveSpec:
        return SaveSpec(step, 1)


@pytest.mark.parametrize(("held", "step"), [(True, 4), (False, 5)])
def test_a_rank_offers_the_step_that_its_devices_hold(held: bool, step: int) -> None:
    """Unless a save of it has failed: then the devices have gone on, or hold something else."""
    clock = Passing()
    gate: Any = Standing()
    boundary: Any = type("Held", (), {"taken": 8})()
    fence = type("Fence", (), {"wait": lambda self, pause: None})()
    state: Any = type("State", (Behind,), {"fence": fence})(boundary)
    told: Any = type("Told", (), {"progress": lambda self, *_: None})()
    notice = PreemptionNotice.received(
        protocol.Preempt("one", 15.0, 0.0, protocol.STALL, "spotguard"), clock.monotonic()
    )
    job = SaveRequest("emergency", CancelScope(clock, clock.monotonic() + 15.0), notice)
    others: Any = Agreeing()
    spec = Quiescence(gate, state, told, lambda: False, others).stand(job, False, held=held)
    assert others.offers == [step]
    assert (spec.step, spec.held_by_devices) == (step, boundary if held else None)


def test_devices_that_hold_another_step_than_the_ranks_agreed_on_give_none() -> None:
    """Its part would stand under another step's number. The other ranks learn that this part does not come."""
    clock = Passing()
    gate: Any = Standing()
    fence = type("Fence", (), {"wait": lambda self, pause: None})()
    state: Any = type("State", (Behind,), {"fence": fence})(type("Held", (), {"taken": 8})())
    told: Any = type("Told", (), {"progress": lambda self, *_: None})()
    notice = PreemptionNotice.received(
        protocol.Preempt("one", 15.0, 0.0, protocol.STALL, "spotguard"), clock.monotonic()
    )
    job = SaveRequest("emergency", CancelScope(clock, clock.monotonic() + 15.0), notice)
    others = Ahead()
    ranks: Any = others
    why = "the ranks agreed on step 5, but the devices hold step 4"
    with pytest.raises(Abandoned, match=why):
        Quiescence(gate, state, told, lambda: False, ranks).stand(job, False)
    assert others.failures == [why]


def test_a_host_that_passes_a_boundary_meanwhile_gives_no_step() -> None:
    """Its step's number would be another."""
    clock = Passing()
    steps = iter([5, 6, 6, 6])

    class Moving(Standing):
        def close(self, *_: object, awaited: bool = False) -> GateRule:
            return GateRule(completed=next(steps))

        def wait_steady(self, left: Callable[[], float], give_up: Callable[[], bool]) -> int:
            return 6

    gate: Any = Moving()
    fence = type("Fence", (), {"wait": lambda self, pause: None})()
    state: Any = type("State", (Behind,), {"fence": fence})(type("Held", (), {"taken": 8})())
    told: Any = type("Told", (), {"progress": lambda self, *_: None})()
    notice = PreemptionNotice.received(
        protocol.Preempt("one", 15.0, 0.0, protocol.STALL, "spotguard"), clock.monotonic()
    )
    job = SaveRequest("emergency", CancelScope(clock, clock.monotonic() + 15.0), notice)
    spec = Quiescence(gate, state, told, lambda: False).stand(job, False)
    assert (spec.step, spec.held_by_devices) == (6, None)
