"""For users' own tests: a notice by hand."""

from __future__ import annotations

from .hooks.guard import Guard

__all__ = ["preempt"]


def preempt(guard: Guard, seconds: float = 30.0) -> None:
    """Give `guard` a notice of so many seconds, as if its machine were to be taken back.

    Returns at once, with the gate shut: no further step is begun. When the state is committed, the training
    thread raises `spotguard.Preempted` at its next `optimizer.step()` or `guard.step()`:

        spotguard.testing.preempt(guard, seconds=30)
        with pytest.raises(spotguard.Preempted):
            train(guard)
    """
    guard.preempt(seconds)
