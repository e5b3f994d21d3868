"""The messages in which a guard tells its machine's agent of itself: once as it registers, then where training stands."""

from __future__ import annotations

import math
import os
import sys

from ...providers.text import NAME, TEXT, clip
from ..arguments.settings import attached_to
from ..commit.plan.partitioner import ALL_STAY
from ..ipc import protocol
from .parts import GuardParts


def registration(parts: GuardParts) -> protocol.Register:
    """Return the first message of each connection to the agent."""
    return protocol.Register(
        pid=os.getpid(),
        run_id=parts.run_id,
        name=os.path.basename(sys.argv[0] or "python"),
        store=parts.store.url,
        rank=parts.rank,
        world=parts.world,
        nbytes=parts.nbytes,
        checkpoints=True,
        elsewhere=parts.channel is not None and len(set(parts.channel.machines)) > 1,
        proof=clip(parts.proof, TEXT),
        attached=clip(attached_to(), NAME),
    )


def position(parts: GuardParts, restored_at: float | None) -> protocol.Position:
    """Return where training stands, and what a save of it would cost.

    Args:
        restored_at: monotonic seconds of the newest restore; None before the first.
    """
    checkpointer, schedule = parts.checkpointer, parts.schedule
    last, cost = checkpointer.last, checkpointer.cost(ALL_STAY)
    progress, loss = parts.progress.look(), parts.losses.loss
    return protocol.Position(
        step=-1 if restored_at is None else parts.gate.place.completed,
        checkpoint_step=-1 if last is None else last.step,
        checkpoint_age=0.0 if last is None else parts.clock.monotonic() - last.at,
        checkpoint_level="full" if last is None else last.level,
        checkpoint_left_out="" if last is None else clip(", ".join(last.left_out), TEXT),
        mode="boundary" if parts.state.boundary_only else "window",
        detail=parts.state.boundary_only,
        save_seconds=-1.0 if cost.seconds is None else cost.seconds,
        rate=cost.rate or 0.0,
        interval=0.0 if math.isinf(schedule.interval) else schedule.interval,
        restored_age=-1.0 if restored_at is None else parts.clock.monotonic() - restored_at,
        phase=progress.phase,
        still=round(progress.still, 3),
        where=progress.where,
        limit=progress.limit,
        attempt=checkpointer.attempt,
        loss="" if loss is None else repr(loss),
        suspect=parts.losses.why(parts.gate.place.completed),
        good_step=checkpointer.saved.good,
        high_loss=parts.losses.high,
        bad_loss_steps=parts.losses.bad_loss_steps,
        failing=parts.saver.failing,
        uploading=checkpointer.uploading is not None,
        failures=parts.startup.failures,
        earlier_step_seconds=parts.history.earlier_step_seconds,
        metrics=parts.metrics.texts,
        **parts.state.monitor.position(),
    )
