"""What is saved when time is short: by bytes, a link and a deadline, and never a commit that is not what it says."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.agreed import Agreed
from spotguard.hooks.checkpointer import Checkpointer
from spotguard.hooks.checkpoints.catalog import Whole, find_whole
from spotguard.hooks.checkpoints.effort import Abandoned, Effort
from spotguard.hooks.checkpoints.retention import Keep, prune
from spotguard.hooks.checkpoints.verify import verify
from spotguard.hooks.format.leaf import Tier
from spotguard.hooks.restore import restore
from spotguard.hooks.saved import Saved
from spotguard.hooks.state.registered import State
from spotguard.providers.errors import DeniedError
from tests.fakes.narrow_store import PIECE, NarrowStore, WatchedClock
from tests.fakes.store import FakeStore, Fault
from tests.fakes.training import Job, different, seed, small

pytestmark = pytest.mark.torch

BOTH = ("full", "weights")
#: With so wide a layer and so small objects, weights and moments are several objects each.
WIDTH, OBJECT = 8192, 64 * 2**10
#: Bytes of the job's state, roughly: the rate of a link and the deadlines below are made from them.
WEIGHTS, MOMENTS = 560_000, 900_000
#: Seconds after which a wait counts as a hang.
PATIENCE = 20.0
RATE = 100_000.0


class Saving:
    """A job of two steps and who saves it, to a slow store."""

    def __init__(
        self,
        rate: Callable[[float], float] = lambda now: RATE,
        *,
        lossy: bool = False,
        known: bool = True,
        width: int = WIDTH,
        job: Job | None = None,
    ) -> None:
        self.clock = WatchedClock()
        self.store = NarrowStore(self.clock, rate)
        self.width = width
        self.job = job if job is not None else small(width=width)
        self.state = State(self.job.values, lambda: None, self.clock)
        self.checkpointer = Checkpointer(
            self.store, "run", 1, clock=self.clock, keep=Keep(1), lossy=lossy, world=1
        )
        self.writer = self.checkpointer._writer
        self.writer._width.object_bytes = OBJECT
        self.store.quiet = lambda: all(hand.free for hand in self.writer._clerk.hands)
        self.done = 0
        self.train(2)
        self.phases: list[str] = []
        self.checkpointer.rehearse(self.state)
        if known:
            link = self.writer.link
            link.begin(-10.0)
            for second in range(1, 11):
                link.sent(int(second * RATE), second - 10.0)
            link.end(0.0)
            link.committed(2 * self.store.latency)

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.job.step(self.done)
            self.done += 1
            self.state.at_boundary()

    def effort(self, seconds: float) -> Effort:
        return Effort(self.clock, self.clock.monotonic() + seconds)

    def save(self, seconds: float | Effort, kind: Any = "emergency") -> Saved | None:
        effort = seconds if isinstance(seconds, Effort) else self.effort(seconds)
        return self.checkpointer.save(
            self.state, Agreed(self.done), kind, effort, lambda phase, done, total: self.phases.append(phase)
        )

    def background(self) -> Saved:
        saved = self.checkpointer.save(
            self.state, Agreed(self.done), "background", Effort(self.clock), opened=lambda: None
        )
        assert saved is not None
        return saved

    def close(self) -> None:
        self.checkpointer.close()
        self.state.close()

    # --- what is there ---

    def newest(self, levels: Any = BOTH) -> Whole | None:
        return find_whole(self.store, "run", levels=levels)

    def manifests(self) -> list[str]:
        return sorted(key.split("/")[2] for key in self.store.objects if key.endswith("-of-00001.json"))

    def markers(self) -> int:
        return sum(key.endswith("COMMIT.json") for key in self.store.objects)

    def restored(self, step: int | None = None, job: Job | None = None) -> tuple[Job, int]:
        """Fresh objects that a restore filled, from a copy that takes no time."""
        store = FakeStore()
        store.objects = dict(self.store.objects)
        fresh = job if job is not None else small(width=self.width)
        seed(99)
        state = State(fresh.values, lambda: None)
        try:
            done = restore(store, "run", state, step=step)
        finally:
            state.close()
        return fresh, done.step


@pytest.fixture
def saving() -> Iterator[Callable[..., Saving]]:
    """Makes them, and closes them: no thread of theirs is left."""
    made: list[Saving] = []
    before = writers()

    def make(*args: Any, **kwargs: Any) -> Saving:
        made.append(Saving(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()
    for thread in writers() - before:  # nobody waited for who was in the store
        thread.join(PATIENCE)
        assert not thread.is_alive()


def writers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("spotguard-writer")}


def without_moments(job: Job) -> dict[str, int]:
    return {path: bits for path, bits in job.bits().items() if not path.startswith("optimizer.state")}


def assert_weights(one: Saving, whole: Whole | None) -> None:
    """The lower level of this step: every bit but the optimizer's state, which begins anew."""
    assert whole is not None
    assert (whole.level, whole.name.step) == ("weights", one.done)
    assert not any(name.startswith("optimizer/state") for name in whole.tensors)
    again, step = one.restored(one.done)
    assert step == one.done
    assert different(without_moments(again), without_moments(one.job)) == []
    optimizer = again.values["optimizer"]
    assert optimizer.state_dict()["state"] == {}
    assert [group["lr"] for group in optimizer.param_groups] == [
        group["lr"] for group in one.job.values["optimizer"].param_groups
    ]


def assert_full(one: Saving) -> None:
    """Every bit of this step, and every byte of it is what was written."""
    whole = one.newest(("full",))
    assert whole is not None
    assert whole.name.step == one.done
    again, step = one.restored(one.done)
    assert step == one.done
    assert different(again.bits(), one.job.bits()) == []
    assert verify(one.store, whole) == []


def test_with_time_all_of_it_is_saved_at_once(saving: Callable[..., Saving]) -> None:
    """One manifest, one marker, nothing of a lower level."""
    one = saving()
    saved = one.save(60)
    assert saved is not None
    assert saved.level == "full"
    assert one.manifests() == ["000000002-0001-0000"]
    assert one.markers() == 1
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


def test_a_link_that_turns_out_slow_costs_the_moments_only(saving: Callable[..., Saving]) -> None:
    """Nothing is known, everything is begun: as the seconds show what the link does, the weights are committed."""
    one = saving(lambda now: RATE / 2, known=False)
    saved = one.save(2 * WEIGHTS / RATE + 4)
    assert saved is not None
    assert saved.level == "weights"
    assert_weights(one, one.newest())


def test_a_link_that_dies_behind_the_weights_leaves_them_committed(saving: Callable[..., Saving]) -> None:
    """Nothing leaves any more, so nobody hears anything: the moment to fall back comes by the clock alone."""
    one = saving(known=False)
    deadline = one.clock.monotonic() + 60
    stalled = False

    def at(key: str, gone: int) -> None:
        nonlocal stalled
        if key.endswith(".safetensors") and not stalled and one.clock.monotonic() > WEIGHTS / RATE + 2:
            stalled = True
            one.clock.advance(deadline - one.clock.monotonic() - 0.4)
            one.store.wait_quiet(lambda: one.markers() == 1)
            one.clock.advance(0.4)

    one.store.at = at
    saved = one.save(60)
    assert saved is not None
    assert (saved.level, stalled) == ("weights", True)
    assert max(time for key, time in one.store.times.items() if key.endswith(".json")) < 60
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
    assert one.manifests() == ["000000002-0001-0000"]
    whole = one.newest(("full",))
    assert whole is not None
    assert verify(one.store, whole) == []
    again, _ = one.restored()
    assert different(without_moments(again), without_moments(one.job)) == []


def test_where_nothing_fits_nothing_is_put(saving: Callable[..., Saving]) -> None:
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
    effort = one.effort(WEIGHTS / RATE + 4)
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
            effort.abandon("the notice was withdrawn")

    one.store.at = at
    with pytest.raises(Abandoned, match="withdrawn"):
        one.save(effort)
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
    outline = one.writer.outline(one.state.collect().leaves)
    weights = sum(planned.tier < 2 for planned in outline.objects)
    # Behind the weights come a manifest and a marker, where they are committed before the rest.
    at = {"weights": 3, "moments": weights + 3, "before the lower": weights + 1}[when]
    one.store.faults = [Fault(at, verbs=("put",), error=lambda: DeniedError("the bucket is full"))]
    if when == "weights":
        with pytest.raises(DeniedError):
            one.save(seconds)
        assert one.newest() is None
        assert one.manifests() == []
        return
    if when == "before the lower":  # and again when the moments are tried once more
        again = Fault(at + 3, verbs=("put",), error=lambda: DeniedError("the bucket is full"))
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
    outline = one.writer.outline(one.state.collect().leaves)
    weights = sum(planned.tier < 2 for planned in outline.objects)
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
    effort = one.effort(60)
    one.store.at = lambda key, gone: effort.tighten(WEIGHTS / RATE + 3) if one.clock.monotonic() > 2 else None
    saved = one.save(effort)
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


# --- what does not change ------------------------------------------------------------------------------------


def adapted() -> Job:
    """A base that nobody trains, and an adapter."""
    seed()
    base, adapter = torch.nn.Linear(64, 4096), torch.nn.Linear(4096, 4)
    for parameter in base.parameters():
        parameter.requires_grad = False
    model = torch.nn.Sequential(base, adapter)
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.01)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(3, 64)).square().mean().backward()
        optimizer.step()

    return Job({"model": model, "optimizer": optimizer}, step)


def references(whole: Whole | None) -> dict[str, int]:
    """How many objects lie in which folder; "" is its own."""
    assert whole is not None
    found: dict[str, int] = {}
    for manifest in whole.manifests:
        for entry in manifest.objects:
            found[entry.checkpoint] = found.get(entry.checkpoint, 0) + 1
    return found


def assert_adapted(one: Saving) -> None:
    again, step = one.restored(job=adapted())
    assert step == one.done
    assert different(again.bits(), one.job.bits()) == []
    whole = one.newest()
    assert whole is not None
    assert verify(one.store, whole) == []


def test_what_nobody_trains_is_put_once(saving: Callable[..., Saving]) -> None:
    """The second checkpoint refers to the first one's objects, and so do all after it, whatever is pruned."""
    one = saving(job=adapted())
    first = one.background()
    assert references(one.newest()).keys() == {""}
    for _ in range(5):
        one.train()
        later = one.background()
        assert later.nbytes < first.nbytes / 2  # what is referred to was not put
        assert references(one.newest()).keys() == {"", "000000002-0001-0000"}
        assert_adapted(one)
    assert one.manifests() == [f"{one.done:09}-0001-0005"]


def test_a_frozen_tensor_that_is_changed_is_put_again(saving: Callable[..., Saving]) -> None:
    """By its bytes, not by its flag."""
    one = saving(job=adapted())
    one.background()
    one.train()
    with torch.no_grad():
        one.job.values["model"][0].bias.add_(1.0)
    one.state.at_boundary()
    one.background()
    found = references(one.newest())
    assert found["000000002-0001-0000"] > 0
    assert_adapted(one)


def test_what_went_from_the_store_is_said_and_put_again(
    saving: Callable[..., Saving], caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else deleted what is referred to: the next checkpoint is whole."""
    one = saving(job=adapted())
    one.background()
    gone = max(one.store.objects, key=lambda key: len(one.store.objects[key]))
    del one.store.objects[gone]
    one.train()
    one.background()
    assert one.newest() is None
    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "step 3 cannot be restored" in said.message
    assert gone.rpartition("/")[2] in said.message
    caplog.clear()
    one.train()
    one.background()
    assert references(one.newest()).keys() == {""}
    assert not caplog.records
    assert_adapted(one)


def test_a_new_attempt_begins_with_a_full_one(saving: Callable[..., Saving]) -> None:
    """It refers to nothing of the attempt before."""
    one = saving(job=adapted())
    one.background()
    one.train()
    one.checkpointer.begin_attempt(2)
    one.background()
    assert references(one.newest()).keys() == {""}
    assert_adapted(one)


@pytest.mark.parametrize("lossy", [False, True])
def test_an_emergency_save_refers_too(saving: Callable[..., Saving], lossy: bool) -> None:
    """So that an adapter is saved where its base would never fit."""
    one = saving(job=adapted(), lossy=lossy)
    one.background()
    one.train()
    saved = one.save(4.0)
    assert saved is not None
    assert saved.level == "full"
    assert references(one.newest())["000000002-0001-0000"] > 10
    assert_adapted(one)


def test_a_lower_level_refers_too(saving: Callable[..., Saving]) -> None:
    """The adapter's moments do not fit, its weights do."""
    one = saving(job=adapted())
    one.background()
    one.train()
    one.store.rate = lambda now: RATE / 10
    seconds = 16_400 * 4 / (RATE / 10) + 4
    one.writer.link.begin(one.clock.monotonic())
    for second in range(1, 11):
        one.clock.advance(1.0)
        one.writer.link.sent(int(second * RATE / 10), one.clock.monotonic())
    one.writer.link.end(one.clock.monotonic())
    saved = one.save(seconds)
    assert saved is not None
    assert saved.level == "weights"
    whole = one.newest()
    assert references(whole)["000000002-0001-0000"] > 10
    assert whole is not None
    assert verify(one.store, whole) == []


# --- whatever the link does ----------------------------------------------------------------------------------


def carries(one: Saving, seconds: float, start: float) -> bool:
    """Whether the link takes all weights and a commit, a tenth of them once more, in all but one of these seconds."""
    now = start
    for planned in one.writer.outline(one.state.collect().leaves).objects:
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


@settings(max_examples=40, deadline=None, derandomize=True)
@given(number=st.integers(0, 2**32))
def test_whatever_the_link_does_what_is_committed_is_in_time_and_true(number: int) -> None:
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
