"""A notice on demand, for tests of your own training script."""

from __future__ import annotations

from .hooks.guard import Guard

__all__ = ["preempt"]


def preempt(guard: Guard, seconds: float = 30.0) -> None:
    """Deliver a notice to `guard`, as if the cloud were about to take its machine back.

    The call returns at once, with the gate shut: the training thread begins no further step. When the state is committed,
    the training thread raises `spotguard.Preempted` at its next `optimizer.step()` or `guard.step()`.

    Args:
        guard: the guard that `spotguard.register` returned.
        seconds: time until the deadline, in which the save must commit.

    Example:
        >>> spotguard.testing.preempt(guard, seconds=30)
        >>> with pytest.raises(spotguard.Preempted):
        ...     train(guard)
    """
    guard.preempt(seconds)
