"""One rank's share of a save: what it puts, and in which order."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from spotguard.hooks.save.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.save.plan.write_plan import WriteProgress
from spotguard.hooks.save.rank_share import RankShare
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.save.upload.transfer_handle import TransferHandle
from spotguard.hooks.state.state_tensor import StateTensor, Tier
from spotguard.providers.clock import SystemClock
from tests.fakes.watched_store import WatchedStore
from tests.hooks.save.commit.writes import NAME

pytestmark = pytest.mark.torch


class Quick(ShardWriter):
    """All is in the store before anybody looks."""

    def start(self, *args: Any, **kwargs: Any) -> TransferHandle:
        handle = super().start(*args, **kwargs)
        never = threading.Event()
        while not handle._work.over():
            never.wait(0.01)
        return handle


def test_weights_are_put_early_also_where_the_moments_are_there_by_then() -> None:
    """Another rank's moments may not be, and its machine be taken."""
    writer = Quick(WatchedStore(), "run")
    state_tensors = [StateTensor("w", torch.ones(8)), StateTensor("m", torch.ones(8), tier=Tier.MOMENTS)]
    did: list[str] = []
    share = RankShare(
        writer,
        CancelScope(SystemClock(), SystemClock().monotonic() + 60.0),
        weights="early",
        begin=lambda: NAME,
        put=lambda name, written: did.append("put the weights' manifest"),
        commit=lambda name, level, written, scope: did.append(f"commit {level}"),
        look=str,
    )
    try:
        _, level, why = share.run(state_tensors, WriteProgress(writer.plans.of(state_tensors)))
    finally:
        writer.uploads.close()
    assert (level, why) == ("full", "")
    assert did == ["put the weights' manifest", "commit full"]


def test_the_moments_leave_time_to_commit_the_weights() -> None:
    """Two seconds of sixty: the other ranks' weights are looked for then."""
    writer = ShardWriter(WatchedStore(), "run")
    state_tensors = [StateTensor("w", torch.ones(8)), StateTensor("m", torch.ones(8), tier=Tier.MOMENTS)]
    whole = CancelScope(SystemClock(), SystemClock().monotonic() + 60.0)
    deadlines: dict[str, float] = {}

    def commit(name: object, level: str, written: object, scope: CancelScope) -> None:
        deadlines[level] = scope.deadline
        if level == "full":
            raise Abandoned("another rank's moments did not arrive")

    share = RankShare(
        writer,
        whole,
        weights="first",
        begin=lambda: NAME,
        put=lambda name, written: None,
        commit=commit,
        look=str,
    )
    try:
        _, level, _ = share.run(state_tensors, WriteProgress(writer.plans.of(state_tensors)))
    finally:
        writer.uploads.close()
    assert level == "weights"
    assert deadlines == {"full": whole.deadline - 2.0, "weights": whole.deadline}
