"""Whatever the link does, what is committed is in time and true."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import Abandoned
from spotguard.hooks.restore.reads.verify import verify
from tests.fakes.narrow_store import PIECE
from tests.hooks.save.narrow_saves import RATE, Saving, assert_full, assert_weights
from tests.tiers import examples

pytestmark = pytest.mark.torch


def carries(one: Saving, seconds: float, start: float) -> bool:
    """Whether the link takes all weights and a commit, a tenth of them once more, in all but one of these seconds."""
    now = start
    for planned in one.writer.plans.of(one.state.collect().state_tensors).objects:
        if planned.tier is Tier.MOMENTS:
            continue
        now += one.store.latency
        left = 1.1 * planned.size
        while left > 0 and now < start + seconds:
            rate = one.store.rate(now)
            if not rate:
                now += 0.1
                continue
            now += PIECE / rate
            left -= PIECE
    manifest = 40_000
    return now + 4 * one.store.latency + manifest / max(1.0, one.store.rate(now)) < start + seconds - 1


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(number=st.integers(0, 2**32))
def test_commits_over_any_link_are_in_time_and_true(number: int) -> None:
    """And something of the step is committed wherever the weights would have gone through with room to spare."""
    draw = random.Random(number)
    rates = [draw.choice([0.0, 0.3, 1.0, 1.0, 3.0]) * RATE * draw.uniform(0.5, 1.5) for _ in range(40)]
    one = Saving(
        lambda now: rates[min(int(now), 39)],
        known=draw.random() < 0.5,
        width=draw.choice([1024, 4096, 8192]),
        lossy=draw.random() < 0.3,
    )
    try:
        seconds = draw.uniform(1.0, 30.0)
        before = dict(one.store.objects)
        why = ""
        try:
            saved = one.save(seconds)
            assert saved is not None, number
            level = saved.level
        except Abandoned as error:
            level, why = None, str(error)
        newest = one.newest()
        if level is None:
            assert newest is None, number
            assert not carries(one, seconds, 0.0) or "nothing is saved" in why, (number, why)
            assert before == {key: data for key, data in one.store.objects.items() if key in before}
            return
        assert newest is not None
        for key, at in one.store.times.items():
            if key.endswith("-of-00001.json"):
                assert at <= seconds, (number, key)
        assert newest.level == level, number
        assert verify(one.store, newest) == []
        if level == "weights":
            assert_weights(one, newest)
        elif not any(tensor.stored for tensor in newest.tensors.values()):
            assert_full(one)
    finally:
        one.close()
