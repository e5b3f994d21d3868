"""One rank's commit, and what it says of the others."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.attempts import claim_step
from spotguard.hooks.checkpoint.catalog import whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import decode_marker
from spotguard.hooks.checkpoint.format.keys import MARKER, CheckpointName, checkpoint_prefix, manifest_name
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.plan.partitioner import RankRoles
from spotguard.hooks.commit.plan.write_plan import WriteProgress
from spotguard.hooks.commit.publish import IncompleteError
from spotguard.hooks.save.committer import Committer, say_what_drifted
from spotguard.hooks.save.request import SaveContext, SaveSpec
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.state.state import State
from spotguard.providers.errors import CheckpointError
from tests.fakes.clock import Hurried
from tests.fakes.store import FakeStore

NAME = CheckpointName(1, 40, 6)


@pytest.mark.parametrize("others", [frozenset[int](), frozenset({2})], ids=["one goes", "two go"])
def test_a_rank_that_goes_says_who_can_still_commit(others: frozenset[int]) -> None:
    """It is out of time, and all that it had to write is there. Who goes as well is no hope."""
    store, clock = FakeStore(), Hurried()
    state = State({"notes": {"a": 1}}, lambda buffer: None, rank=1, world=3)
    state.at_boundary()
    agreed = SaveSpec(40, 3, RankRoles(others | {1}))
    save = SaveContext(
        state,
        state.collect(),
        agreed,
        iter([NAME]),
        "emergency",
        CancelScope(clock, 5.0),
        None,
        in_place=True,
    )
    committer = Committer("run", clock, rank=1, world=3, incarnation="nonce")
    with closing(ShardWriter(store, "run", 1, 3)) as writer:
        write_progress = WriteProgress(writer.plans.of(save.collected.state_tensors), roles=agreed.roles)
        queue = writer.queue(save.collected.state_tensors, NAME, save.scope, write_progress=write_progress)
        queue.objects()
        with pytest.raises(
            IncompleteError, match="out of time; ranks 0, 2 of 3 have uploaded no manifest"
        ) as said:
            committer.commit(queue, committer.queue(queue, save, NAME, "full", writer), save, writer)
    hope = "This rank's part is in the store, and ranks 0, 2, which stay, can commit step 40 without it"
    assert (hope in str(said.value)) == (not others)
    prefix = checkpoint_prefix("run", NAME)
    assert prefix + manifest_name(1, 3) in store.objects
    assert prefix + MARKER not in store.objects


def test_replicas_that_differ_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """By the tensor, and by how many more there are."""
    alike = {"model/a": 1, "model/b": 2}
    say_what_drifted(NAME, [alike, {**alike, "model/b": 3}, {}])
    assert "model/b differ" in caplog.text
    assert "model/a" not in caplog.text


def test_replicas_that_are_alike_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    say_what_drifted(NAME, [{"model/a": 1}, {"model/a": 1}, {"model/other": 2}])
    assert caplog.text == ""


def test_drifted_tensors_are_named_up_to_a_few(caplog: pytest.LogCaptureFixture) -> None:
    digests = [{f"model/{i}": i + rank for i in range(9)} for rank in range(2)]
    say_what_drifted(NAME, digests)
    assert "model/4 and 4 more" in caplog.text


@pytest.mark.parametrize(("lacks", "level"), [("", "partial-extras"), ("optimizer steps no more", "weights")])
def test_a_checkpoint_without_moments_and_extras_is_of_the_lower_level(lacks: str, level: str) -> None:
    """Its manifests and its marker name the dead rank all the same."""
    store = FakeStore()
    state = State({"notes": {"a": 1}}, lambda buffer: None, rank=0, world=2)
    state.at_boundary()
    agreed = SaveSpec(40, 3, RankRoles(absent=frozenset({1})), speaks=True)
    collected = replace(state.collect(), lacks=lacks)
    save = SaveContext(
        state, collected, agreed, iter([NAME]), "emergency", CancelScope(Hurried(), None), None, in_place=True
    )
    committer = Committer("run", Hurried(), rank=0, world=2, incarnation="nonce")
    with closing(ShardWriter(store, "run", 0, 2)) as writer:
        write_progress = WriteProgress(writer.plans.of(collected.state_tensors), roles=agreed.roles)
        queue = writer.queue(collected.state_tensors, NAME, save.scope, write_progress=write_progress)
        queue.objects()
        committer.commit(queue, committer.queue(queue, save, NAME, "full", writer), save, writer)
    (whole,) = whole_checkpoints(store, "run", levels=LEVELS)
    assert (whole.level, whole.missing) == (level, (1,))
    key = checkpoint_prefix("run", NAME) + MARKER
    assert decode_marker(store.get(key), key).missing == (1,)


def test_a_step_that_the_other_side_saves_is_not_saved_here() -> None:
    """No manifest of an absent rank is put, so nothing here ever counts, and nothing is marked."""
    store = FakeStore()
    state = State({"notes": {"a": 1}}, lambda buffer: None, rank=0, world=2)
    state.at_boundary()
    assert claim_step(store, "run", NAME, incarnation="nonce", side=1)
    agreed = SaveSpec(40, 3, RankRoles(absent=frozenset({1})), speaks=True, why="no answer from rank 1")
    save = SaveContext(
        state,
        state.collect(),
        agreed,
        iter([NAME]),
        "emergency",
        CancelScope(Hurried(), None),
        None,
        in_place=True,
    )
    committer = Committer("run", Hurried(), rank=0, world=2, incarnation="nonce")
    with closing(ShardWriter(store, "run", 0, 2)) as writer:
        write_progress = WriteProgress(writer.plans.of(save.collected.state_tensors), roles=agreed.roles)
        queue = writer.queue(save.collected.state_tensors, NAME, save.scope, write_progress=write_progress)
        queue.objects()
        with pytest.raises(CheckpointError, match=r"rank 1 cannot be reached, and may live: .* step 40"):
            committer.commit(queue, committer.queue(queue, save, NAME, "full", writer), save, writer)
        own = replace(save, agreed=replace(agreed, side=1))
        assert not [*whole_checkpoints(store, "run", levels=LEVELS)]
        assert not [key for key in store.objects if key.endswith((MARKER, manifest_name(1, 2)))]
        queue = writer.queue(save.collected.state_tensors, NAME, save.scope, write_progress=write_progress)
        committer.commit(queue, committer.queue(queue, own, NAME, "full", writer), own, writer)
    (whole,) = whole_checkpoints(store, "run", levels=LEVELS)
    assert whole.missing == (1,)
