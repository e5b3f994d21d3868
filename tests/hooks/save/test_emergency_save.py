"""What is saved when time is short: by bytes, a link and a deadline, and never a commit that is not what it says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.commit.plan.write_plan import WEIGHTS as WEIGHT_TIERS
from spotguard.hooks.restore.reads.verify import verify
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SavedCheckpoint, SaveSpec, Weights
from spotguard.hooks.state.state import State
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import FullError, StoreError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import ManualClock
from tests.fakes.pruned import prune
from tests.fakes.store import FakeStore, Fault
from tests.fakes.training import different, small
from tests.hooks.save.narrow_saves import (
    MOMENTS,
    RATE,
    WEIGHTS,
    WIDTH,
    Saving,
    assert_full,
    assert_weights,
    saving,
    without_moments,
)

pytestmark = pytest.mark.torch
__all__ = ["saving"]


def test_with_time_all_of_it_is_saved_at_once(saving: Callable[..., Saving]) -> None:
    """One manifest, one marker, nothing of a lower level, where a restore would take the checkpoint before."""
    one = saving()
    one.background()
    one.train()
    saved = one.save(60)
    assert saved is not None
    assert saved.level == "full"
    assert one.manifests() == ["000000002-0001-0000", "000000003-0001-0001"]
    assert one.markers() == 2
    assert_full(one)


def test_with_time_the_weights_are_committed_early_where_a_restore_would_take_them(
    saving: Callable[..., Saving],
) -> None:
    """The machine is killed in the middle of the moments: one manifest more is all that it cost, and it counts. The moments
    did not wait for it."""
    one = saving()
    killed: dict[str, bytes] = {}

    def at(key: str, gone: int) -> None:
        if one.clock.monotonic() > WEIGHTS / RATE + 2 and not killed:
            killed.update(one.store.objects)

    one.store.at = at
    saved = one.save(60)
    assert saved is not None
    assert (saved.level, saved.why) == ("full", "")
    assert one.manifests() == ["000000002-0001-0000", "000000002-0001-0001"]
    assert one.markers() == 1
    assert [verb for verb, _ in one.store.calls].count("put") == len(one.store.objects)  # nothing twice
    assert_full(one)
    there = dict(one.store.objects)
    one.store.objects = killed
    assert one.newest(("full",)) is None
    assert_weights(one, one.newest())
    one.store.objects = there
    assert [str(name) for name in prune(one.store, "run", keep=1)] == ["000000002-0001-0000"]
    assert one.manifests() == ["000000002-0001-0001"]
    assert_full(one)


def test_moments_that_are_nearly_there_are_waited_for(saving: Callable[..., Saving]) -> None:
    """They need less than 2 s: nothing of a lower level, though nothing was committed before."""
    one = saving(lambda now: 10 * RATE, known=False)
    one.writer.uploads.link.begin(-10.0)
    one.writer.uploads.link.sent(int(100 * RATE), 0.0)
    one.writer.uploads.link.end(0.0)
    saved = one.save(60)
    assert saved is not None
    assert saved.level == "full"
    assert one.manifests() == ["000000002-0001-0000"]


@pytest.mark.parametrize("error", [FullError, UnavailableError])
def test_an_early_manifest_that_fails_costs_the_full_save_nothing(
    saving: Callable[..., Saving], error: type[StoreError], caplog: pytest.LogCaptureFixture
) -> None:
    """Refused, or not answered for as long as the moments take at least."""
    caplog.set_level(logging.DEBUG, "spotguard")
    one = saving()
    real = one.store.put

    def put(key: str, data: memoryview, **more: Any) -> None:
        if "-0001-0000/00000-of-00001.json" in key:
            one.clock.advance(2.5)
            raise error("not this one")
        real(key, data, **more)

    one.store.put = put  # type: ignore[method-assign]
    saved = one.save(60)
    assert saved is not None
    assert saved.level == "full"
    assert "the weights of step 2 are not committed before its moments" in caplog.text
    assert "000000002-0001-0000" not in one.manifests()
    assert_full(one)


def test_weights_alone_where_no_more_fits(saving: Callable[..., Saving]) -> None:
    """At the rate that is known: they are committed, and what came of the moments counts for nothing."""
    one = saving()
    saved = one.save(WEIGHTS / RATE + 3)
    assert saved is not None
    assert saved.level == "weights"
    assert saved.nbytes < WEIGHTS * 1.1
    assert "parameters and extras first" in saved.why
    assert one.manifests() == ["000000002-0001-0000"]
    assert one.newest(("full",)) is None
    assert_weights(one, one.newest())


@pytest.mark.parametrize("lossy", [False, True], ids=["exact", "lossy"])
@pytest.mark.parametrize("lost", [(Tier.MOMENTS,), tuple(Tier)], ids=["moments", "everything"])
@pytest.mark.parametrize("name", ["00000-of-00001.json", "COMMIT.json"])
def test_weights_are_committed_alone_after_an_outage_took_moments_that_had_arrived(
    saving: Callable[..., Saving], name: str, lost: tuple[Tier, ...], lossy: bool
) -> None:
    """At the manifest or the marker. The moments do not fit a second time, and the weights do."""
    one = saving(lossy=lossy)
    one.background()
    one.train()
    plan = one.writer.plans.of(one.state.collect().state_tensors)
    ends = [f"/{index:04}.safetensors" for tier in lost for index in plan.indices_of(tier)]
    gone: list[str] = []

    def at(key: str, sent: int) -> None:
        if not gone and key.endswith(name):
            gone.extend(
                key for key in one.store.objects if "/000000003-" in key and key.endswith(tuple(ends))
            )
            for key in gone:
                del one.store.objects[key]
            raise UnavailableError("it was away")

    one.store.at = at
    saved = one.save((WEIGHTS + MOMENTS) / RATE + (WEIGHTS / RATE if Tier.WEIGHTS in lost else 0.0) + 6)
    assert gone
    assert saved is not None
    assert (saved.level, saved.step) == ("weights", 3)
    assert_weights(one, one.newest())


def test_moments_wait_while_weights_that_are_short_of_time_are_on_their_way(
    saving: Callable[..., Saving],
) -> None:
    """The link is theirs: no byte of a moment leaves before the last of them is in the store."""
    one = saving()
    began: list[tuple[str, bool]] = []
    plan = one.writer.plans.of(one.state.collect().state_tensors)
    weights = {f"/{index:04}.safetensors" for tier in WEIGHT_TIERS for index in plan.indices_of(tier)}

    def at(key: str, gone: int) -> None:
        if key.endswith(".safetensors"):
            there = sum(key.endswith(tuple(weights)) for key in one.store.objects) == len(weights)
            began.append((key, there))

    one.store.at = at
    saved = one.save(WEIGHTS / RATE + 3)
    assert saved is not None
    assert saved.level == "weights"
    moments = [there for key, there in began if not key.endswith(tuple(weights))]
    assert moments
    assert all(moments)


def agreed(store: BlobStore, weights: Weights, clock: Clock, seconds: float) -> SavedCheckpoint | None:
    """A save on whose order the ranks have agreed, of a job of one rank."""
    job = small()
    state = State(job.values, lambda buffer: None, clock)
    checkpointer = Checkpointer(store, "run", 1, clock=clock, keep=Keep(1))
    try:
        job.step(0)
        state.at_boundary()
        scope = CancelScope(clock, clock.monotonic() + seconds)
        return checkpointer.save(state, SaveSpec(1, 7, parked=True, weights=weights), "emergency", scope)
    finally:
        checkpointer.close()
        state.close()


def test_weights_are_put_early_also_where_the_moments_are_there_by_then() -> None:
    """Another rank's moments may not be, and its machine be taken."""
    store = FakeStore()
    saved = agreed(store, "early", SystemClock(), 60.0)
    assert saved is not None
    assert (saved.level, saved.why) == ("full", "")
    assert sorted(key.split("/")[2] for key in store.objects if key.endswith("-of-00001.json")) == [
        "000000001-0001-0014",
        "000000001-0001-0015",
    ]


def test_the_moments_leave_time_to_commit_the_weights() -> None:
    """Two seconds of sixty: the other ranks' weights are looked for then."""
    store, clock = FakeStore(), ManualClock(0.0)

    def fails(request: Request) -> None:
        if request.verb == "put" and request.key.endswith("-0015/00000-of-00001.json"):
            clock.advance(58.5)
            raise UnavailableError("not now")

    saved = agreed(CalledStore(store, fails), "first", clock, 60.0)
    assert saved is not None
    assert saved.level == "weights"
    assert saved.why.startswith(
        "time was short, so the weights were uploaded first; the moments: out of time"
    )
    assert find_whole(store, "run") is None
    assert find_whole(store, "run", levels=("weights",)) is not None


def test_a_link_that_turns_out_slow_costs_the_moments_only(saving: Callable[..., Saving]) -> None:
    """Nothing is known, everything is begun: as the seconds show what the link does, the weights are committed."""
    one = saving(lambda now: RATE / 2, known=False)
    saved = one.save(2 * WEIGHTS / RATE + 4)
    assert saved is not None
    assert saved.level == "weights"
    assert_weights(one, one.newest())


def test_a_link_that_dies_behind_the_weights_leaves_them_committed(saving: Callable[..., Saving]) -> None:
    """Nothing leaves any more, so nobody hears anything: the moment to fall back comes by the clock alone."""
    one = saving()
    one.background()
    one.train()
    start, deadline = one.clock.monotonic(), one.clock.monotonic() + 60
    stalled = False

    def at(key: str, gone: int) -> None:
        nonlocal stalled
        if (
            key.endswith(".safetensors")
            and not stalled
            and one.clock.monotonic() > start + WEIGHTS / RATE + 2
        ):
            stalled = True
            one.clock.advance(deadline - one.clock.monotonic() - 0.4)
            one.store.wait_quiet(lambda: one.markers() == 2)
            one.clock.advance(0.4)

    one.store.at = at
    saved = one.save(60)
    assert saved is not None
    assert (saved.level, stalled) == ("weights", True)
    assert max(time for key, time in one.store.times.items() if key.endswith(".json")) < deadline
    assert_weights(one, one.newest())


def test_a_link_that_recovers_brings_the_moments_after_all(saving: Callable[..., Saving]) -> None:
    """The full manifest stands under the next save number and refers to the weights where they lie."""
    one = saving(lambda now: RATE if now < WEIGHTS / RATE + 1 else 20 * RATE)
    saved = one.save(WEIGHTS / RATE + 4)
    assert saved is not None
    assert saved.level == "full"
    assert one.manifests() == ["000000002-0001-0000", "000000002-0001-0001"]
    whole = one.newest(("full",))
    assert whole is not None
    entries = whole.manifests[0].objects
    # The moments were on their way when the weights were committed, and went on beside that.
    assert {entry.checkpoint for entry in entries} == {"000000002-0001-0000"}
    lower = find_whole(one.store, "run", levels=("weights",))
    assert lower is not None
    assert not any(entry.checkpoint for entry in lower.manifests[0].objects)  # the first refers to nothing
    assert_full(one)
    assert [str(name) for name in prune(one.store, "run", keep=1)] == ["000000002-0001-0000"]
    assert one.manifests() == ["000000002-0001-0001"]
    assert_full(one)


def test_with_leave_moments_are_rounded_where_that_makes_them_fit(saving: Callable[..., Saving]) -> None:
    """To bfloat16, as the manifest says; counters and all else keep every bit."""
    one = saving(lossy=True)
    saved = one.save((WEIGHTS + 0.7 * MOMENTS) / RATE)
    assert saved is not None
    assert (saved.level, "rounded" in saved.why) == ("full", True)
    whole = one.newest(("full",))
    assert whole is not None
    stored = {name: (tensor.dtype, tensor.stored) for name, tensor in whole.tensors.items()}
    for name, said in stored.items():
        moment = name.startswith("optimizer/state") and not name.endswith("step")
        assert said[1] == ("bfloat16" if moment else ""), name
        assert not moment or said[0] == "float32"
    again, _ = one.restored()
    assert different(without_moments(again), without_moments(one.job)) == []
    mine = one.job.values["optimizer"].state_dict()["state"]
    for index, found in again.values["optimizer"].state_dict()["state"].items():
        assert torch.equal(found["step"], mine[index]["step"])
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(found[name], mine[index][name].to(torch.bfloat16).float())


def test_nothing_is_rounded_where_all_fits(saving: Callable[..., Saving]) -> None:
    """Leave to do so is no wish."""
    one = saving(lossy=True)
    one.save(60)
    assert_full(one)


def test_moments_are_rounded_when_the_link_slows_before_they_are_begun(saving: Callable[..., Saving]) -> None:
    """The weights that are there stay where they are, and are the same in both layouts."""
    one = saving(lambda now: RATE if now < 1 else 0.7 * RATE, lossy=True)
    saved = one.save((WEIGHTS + MOMENTS) / RATE + 1.5)
    assert saved is not None
    assert (saved.level, "rounded" in saved.why) == ("full", True)
    assert one.manifests() == ["000000002-0001-0000", "000000002-0001-0001"]
    whole = one.newest(("full",))
    assert whole is not None
    assert verify(one.store, whole) == []
    again, _ = one.restored()
    assert different(without_moments(again), without_moments(one.job)) == []


def test_a_save_that_cannot_fit_puts_nothing(saving: Callable[..., Saving]) -> None:
    """The reason names bytes, rate and seconds, and what stays."""
    one = saving()
    one.background()
    before = dict(one.store.objects)
    one.train()
    with pytest.raises(Abandoned, match=r"KiB at \d+ KiB/s need .* s are left; step 2 stays"):
        one.save(1.0)
    assert one.store.objects == before
    assert one.checkpointer.last is not None
    assert one.checkpointer.last.step == 2


@pytest.mark.parametrize("when", ["first", "weights", "lower", "moments"])
def test_called_off_it_leaves_nothing_full(saving: Callable[..., Saving], when: str) -> None:
    """In each phase: no full manifest, and no thread (the fixture looks)."""
    one = saving(lambda now: RATE if now < WEIGHTS / RATE + 2 else 20 * RATE)
    scope = one.scope(WEIGHTS / RATE + 4)
    puts = 0

    def at(key: str, gone: int) -> None:
        nonlocal puts
        puts += 1
        there = len(one.manifests())
        reached = {
            "first": puts == 1,
            "weights": puts == 10,
            "lower": key.endswith("-of-00001.json"),
            "moments": there == 1 and key.endswith(".safetensors"),
        }
        if reached[when]:
            scope.abandon("the notice was withdrawn")

    one.store.at = at
    with pytest.raises(Abandoned, match="withdrawn"):
        one.save(scope)
    assert one.newest(("full",)) is None
    if when in ("first", "weights"):
        assert one.newest() is None
    if when == "moments":
        assert_weights(one, one.newest())


@pytest.mark.parametrize("when", ["weights", "moments", "before the lower"])
def test_a_store_that_fails_for_good(saving: Callable[..., Saving], when: str) -> None:
    """Without weights it is an error; with them they count, whether they were committed before or not."""
    seconds = 60.0 if when == "before the lower" else WEIGHTS / RATE + 4
    one = saving(lambda now: RATE if now < WEIGHTS / RATE + 2 else 20 * RATE)
    write_plan = one.writer.plans.of(one.state.collect().state_tensors)
    weights = sum(planned.tier < 2 for planned in write_plan.objects)
    # Behind the weights come a manifest and a marker, where they are committed before the rest.
    at = {"weights": 3, "moments": weights + 3, "before the lower": weights + 1}[when]
    one.store.faults = [Fault(at, verbs=("put",), error=lambda: FullError("the bucket is full"))]
    if when == "weights":
        with pytest.raises(FullError):
            one.save(seconds)
        assert one.newest() is None
        assert one.manifests() == []
        return
    if when == "before the lower":  # and again when the moments are tried once more
        again = Fault(at + 3, verbs=("put",), error=lambda: FullError("the bucket is full"))
        one.store.faults.append(again)
    saved = one.save(seconds)
    assert saved is not None
    assert saved.level == "weights"
    assert one.newest(("full",)) is None
    assert_weights(one, one.newest())


@pytest.mark.parametrize("when", ["weights", "moments"])
def test_an_error_that_is_no_store_s_leaves_the_weights_committed(
    saving: Callable[..., Saving], when: str
) -> None:
    """A device that has no memory to round in, say. Without weights it is an error as it is."""
    one = saving(lossy=True)
    write_plan = one.writer.plans.of(one.state.collect().state_tensors)
    weights = sum(planned.tier < 2 for planned in write_plan.objects)
    at = {"weights": 3, "moments": weights + 3}[when]
    full = torch.OutOfMemoryError("CUDA out of memory")
    one.store.faults = [Fault(at, verbs=("put",), error=lambda: full)]
    if when == "weights":
        with pytest.raises(torch.OutOfMemoryError):
            one.save(60)
        assert one.newest() is None
        assert one.manifests() == []
        return
    saved = one.save(60)
    assert saved is not None
    assert saved.level == "weights"
    assert "CUDA out of memory" in saved.why
    assert one.newest(("full",)) is None
    assert_weights(one, one.newest())


def test_a_deadline_that_moves_earlier_is_kept(saving: Callable[..., Saving]) -> None:
    """All would have fitted; now the weights do."""
    one = saving()
    scope = one.scope(60)
    one.store.at = lambda key, gone: scope.tighten(WEIGHTS / RATE + 3) if one.clock.monotonic() > 2 else None
    saved = one.save(scope)
    assert saved is not None
    assert saved.level == "weights"
    assert max(one.store.times.values()) <= WEIGHTS / RATE + 3
    assert_weights(one, one.newest())


def test_a_state_that_moves_behind_the_lower_commit_spoils_only_the_rest(
    saving: Callable[..., Saving],
) -> None:
    """What was committed was looked at then. The rest is thrown away, and the newest committed step is known."""
    one = saving(lambda now: RATE if now < WEIGHTS / RATE + 1 else 20 * RATE)
    before = small(width=WIDTH)
    before.step(0)
    before.step(1)
    weight = one.job.values["model"][0].weight

    def at(key: str, gone: int) -> None:
        if len(one.manifests()) == 1 and key.endswith(".safetensors"):
            with torch.no_grad():
                weight.add_(1.0)

    one.store.at = at
    assert one.save(WEIGHTS / RATE + 4) is None
    assert "changed" in one.checkpointer.spoiled
    assert one.newest(("full",)) is None
    again, _ = one.restored(2)
    assert different(without_moments(again), without_moments(before)) == []
    last = one.checkpointer.last
    assert last is not None
    assert (last.step, last.level) == (2, "weights")
