"""Saves and notices that the script asks for itself."""

from __future__ import annotations

import logging

from ...providers.errors import CheckpointError
from ..commit.cancel_scope import Abandoned
from ..control.gate_rule import Shut
from ..ipc import protocol
from ..ipc.notice import BY_HAND, PreemptionNotice
from ..save.request import SavedCheckpoint
from .call_place import IN_ANOTHER_THREAD
from .parts import GuardParts

log = logging.getLogger("spotguard")


def save(parts: GuardParts, beside: str, standing: bool) -> SavedCheckpoint:
    """Save, and wait for the commit.

    Args:
        parts: the parts of the guard.
        beside: the place beside training, as `beside_training` returns it.
        standing: save the copies of the last boundary; otherwise what is there now.

    Raises:
        CheckpointError, StoreError, Preempted: as `Guard.save` does.
    """
    gate, saver = parts.gate, parts.saver
    if beside == IN_ANOTHER_THREAD:  # training goes on meanwhile, and parks where the saver stops it
        try:
            return saver.manual()
        except Abandoned as why:
            raise CheckpointError(f"guard.save() {beside} gives way: {why}") from why
    if standing and parts.coordinator is None and (saved := saver.committed) and saved.level == "full":
        # What has changed since, such as a best model that was loaded in place, belongs to no step.
        return saved
    while True:
        gate.take_again((lambda: None) if standing else parts.state.take_again)
        try:
            return saver.manual()
        except Abandoned as why:
            log.debug("guard.save() waits: %s", why)
        finally:
            gate.stand()  # a notice ends in Preempted here, or lets training go on
        if (saved := saver.made_meanwhile()) is not None:
            return saved


def preempt(parts: GuardParts, seconds: float) -> None:
    """Give the guard a notice by hand, with a deadline in so many seconds."""
    # Closed here, before the saver thread gets its turn: the ten small steps of a test would be over by then.
    parts.gate.close(Shut.AT_BOUNDARY if parts.state.boundary_only else Shut.BEFORE_CHANGE)
    until = (now := parts.clock.monotonic()) + seconds
    if parts.coordinator is not None:
        parts.coordinator.notice(protocol.Preempt("by hand", seconds, 0.0, BY_HAND, "spotguard.testing"))
        return
    parts.saver.emergency(
        PreemptionNotice(["by hand"], until, until, "spotguard.testing", BY_HAND, by_hand=True, seen=now)
    )
