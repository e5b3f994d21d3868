"""Who can be done without."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from spotguard.hooks.consensus.topology import ReplicationInfo

REPLICA = ReplicationInfo(frozenset({"model", "optimizer", "rng"}), frozenset({(0, 1)}), alone=False)


def test_a_replica_can_be_done_without() -> None:
    assert REPLICA.within(REPLICA)


@pytest.mark.parametrize(
    "more",
    [
        ReplicationInfo(REPLICA.parts | {"ema"}, REPLICA.groups, alone=False),
        ReplicationInfo(REPLICA.parts, REPLICA.groups | {(1, 2)}, alone=False),
        ReplicationInfo(REPLICA.parts, REPLICA.groups, alone=True),
    ],
    ids=["a name of its own", "another group", "tensors of its own"],
)
def test_a_rank_with_more_state_is_within_no_other(more: ReplicationInfo) -> None:
    """Though it has all that the others have."""
    assert not more.within(REPLICA)
    assert REPLICA.within(more)
