"""How long ranks wait for each other's offers: a part of what the save has left, and never long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from spotguard.hooks.consensus.vote import Decision
from spotguard.hooks.control.quiesce import Quiescence
from spotguard.hooks.save.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.save.request import SaveRequest
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
