"""Checksums of the state: every byte comes round, an edit is named, and the time they take is a share of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from spotguard.hooks.ipc import threads
from spotguard.hooks.state.state_tensor import StateTensor
from tests.fakes.clock import ManualClock

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from spotguard.hooks.state.changes import audit as audits  # noqa: E402
from spotguard.hooks.state.changes import change_detector  # noqa: E402
from spotguard.hooks.state.changes.audit import Audit, Reference  # noqa: E402
from spotguard.hooks.state.changes.change_detector import equal, source  # noqa: E402

MIB = 2**20


class Audited:
    """Some tensors under an audit, on a clock that the test sets."""

    def __init__(self, *tensors: Any) -> None:
        self.clock = ManualClock()
        self.said: list[str] = []
        self.state_tensors = [StateTensor(f"model/{i}", tensor) for i, tensor in enumerate(tensors)]
        self.audit = Audit(self.clock.monotonic, self.said.append)
        self.audit.follow(self.state_tensors, tensors)

    def reference(self) -> Reference:
        self.audit.take(lambda: False)
        assert self.audit.reference is not None
        return self.audit.reference


#: Of a state that is audited only as numbers: a slice is counted by pieces of so many bytes.
UNIT = 4096


def timed(nbytes: int, patch: pytest.MonkeyPatch) -> Audited:
    """A state whose checksums take 8 GB/s on its clock, and read nothing."""
    job = Audited(torch.empty(nbytes, dtype=torch.uint8))

    def read(here: object, start: int, stop: int, *, on_host: bool = False) -> int:
        job.clock.advance((stop - start) / 8e9)
        return 0

    patch.setattr("spotguard.hooks.state.changes.change_detector._Memory.read", read)
    return job


def slices(job: Audited, boundaries: int, step: float) -> list[Any]:
    """The pieces of which a checksum is taken at each of the next boundaries, a step apart."""
    taken = []
    for _ in range(boundaries):
        job.audit.turn(step)
        parts = [np.arange(part.start // UNIT, -(-part.stop // UNIT)) for part, _ in job.audit._slice]
        job.audit.look()
        taken.append(np.concatenate(parts) if parts else np.arange(0))
    return taken


def no_pause(seconds: float) -> None:
    """Nothing is called off."""


def rows(name: str) -> Any:
    """A tensor of 1,000 rows that lies in memory in this way."""
    dense = torch.arange(64000, dtype=torch.float32).reshape(1000, 64)
    ways: dict[str, Callable[[], Any]] = {
        "contiguous": lambda: dense,
        "transposed": lambda: dense.t().contiguous().t(),
        "a part of a wider one": lambda: torch.cat([dense, dense], 1)[:, :64],
        "a part that begins at an odd byte": lambda: torch.zeros(64003, dtype=torch.uint8)[3:].view(1000, 64),
        "bfloat16": lambda: dense.bfloat16(),
        "conjugated": lambda: torch.complex(dense, dense).conj(),
        "boolean": lambda: dense > 5,
    }
    return ways[name]()


WAYS = [
    "contiguous",
    "transposed",
    "a part of a wider one",
    "a part that begins at an odd byte",
    "bfloat16",
    "conjugated",
    "boolean",
]


@pytest.mark.parametrize("kind", ["crc32", "sums"])
@pytest.mark.parametrize("way", WAYS)
def test_one_changed_row_of_1000_changes_the_checksum_and_a_contiguous_copy_has_the_same(
    way: str, kind: Any
) -> None:
    live = rows(way)
    copy = torch.empty(live.shape, dtype=live.dtype).copy_(live)
    seen, copied = source("it", live, kind), source("it", copy, kind)
    before = seen.read(0, seen.nbytes)
    assert equal(before, copied.read(0, copied.nbytes))
    part = seen.whole_rows(seen.nbytes // 3)
    assert equal(seen.read(part, 2 * part), copied.read(part, 2 * part))
    live[617] = ~live[617] if live.dtype == torch.bool else 3
    assert not equal(seen.read(0, seen.nbytes), before)
    assert equal(copied.read(0, copied.nbytes), before)


@pytest.mark.parametrize("kind", ["crc32", "sums"])
@pytest.mark.parametrize("rows", [4, 1000, 50_000])  # behind the last block, in one, in several
def test_rows_that_change_places_change_the_checksum(rows: int, kind: Any) -> None:
    table = torch.randn(rows, 64)
    seen = source("it", table, kind)
    before = seen.read(0, seen.nbytes)
    table[[1, 3]] = table[[3, 1]]
    assert not equal(seen.read(0, seen.nbytes), before)


def test_slices_come_round_and_a_changed_row_is_named_within_one_round() -> None:
    """50,000 rows, of which a turn changes one, each time another."""
    table, other = torch.zeros(50_000, 64), torch.zeros(1000)
    job = Audited(other, table)
    total = table.nbytes + other.nbytes
    turns = 0
    while not job.said:
        job.audit.turn(0.01)
        table.numpy()[turns * 7919 % 50_000] += 1
        job.audit.look()
        turns += 1
        assert turns < 5 * total
    assert "model/1 was changed in place after guard.step()" in job.said[0]


def test_a_change_between_two_boundaries_is_none() -> None:
    """Where `turn` takes the next slice, the optimizer has stepped."""
    table = torch.zeros(1000, 64)
    job = Audited(table)
    for _ in range(300):
        job.audit.turn(0.01)
        assert job.audit.look() == ""
        table.add_(1)
    assert job.said == []


@pytest.mark.parametrize(("boundaries", "share"), [(200, 0.02), (5000, 0.001)])
def test_slices_take_their_share_of_a_step_and_no_more(
    boundaries: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 100 ms, and a checksum of 8 GB/s."""
    job = timed(64 * MIB, monkeypatch)
    if boundaries > 200:
        slices(job, 200, 0.1)
    before = job.clock.monotonic()
    taken = slices(job, boundaries, 0.1)
    assert job.clock.monotonic() - before <= 1.05 * share * 0.1 * boundaries
    assert len(np.unique(np.concatenate(taken))) == 64 * MIB // UNIT, "not all bytes came round"


@pytest.mark.parametrize("step", [0.0005, 0.001, 0.003, 0.005, 0.01])
def test_short_steps_are_looked_at_too(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first 200 boundaries 0.1 ms is always theirs; later, half of the share at least."""
    job = timed(4 * MIB, monkeypatch)
    began = job.clock.monotonic()
    early = slices(job, 200, step)
    assert job.clock.monotonic() - began <= 1.05 * max(0.02 * step, 100e-6) * 200
    assert all(len(each) for each in early)
    began, boundaries = job.clock.monotonic(), int(10 / step)  # ten seconds of training
    later = slices(job, boundaries, step)
    spent = job.clock.monotonic() - began
    assert 0.4 * 0.0009 * 10 - audits._SLICE <= spent <= 1.05 * 0.001 * 10
    assert len(np.unique(np.concatenate(later))) == 4 * MIB // UNIT, "not all bytes came round"


def first_turns(taken: list[Any], units: int, start: int) -> Any:
    """For each unit, how many turns from `start` on until a slice holds it: 1 is the very first."""
    found = np.full(units, len(taken) - start, dtype=np.int64)
    for turn in range(len(taken) - 1, start - 1, -1):
        found[taken[turn]] = turn - start + 1
    return found


@pytest.mark.parametrize("later", [False, True], ids=["first 200 turns", "later"])
def test_the_chance_that_an_edit_is_saved_is_that_of_the_docs(
    later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 100 ms: in each place and at 40 moments, against `docs/explanation/live-state.md`. (Nothing was found before.)"""
    nbytes, draw = (128 if later else 100) * MIB, np.random.default_rng(19)
    job, units = timed(nbytes, monkeypatch), nbytes // UNIT
    taken = slices(job, 200, 0.1)
    if later:
        taken = slices(job, 12_000, 0.1)
    each_turn = sum(len(each) for each in taken) / len(taken)
    R = units / each_turn
    assert (300 if later else 10) < R < (600 if later else 60), R
    starts = draw.integers(0, len(taken) // 2, 40)
    firsts = np.stack([first_turns(taken, units, start) for start in starts])
    for part in (0.1, 0.5, 0.9):
        n = max(round(part * R), 1)
        assert (firsts > n).mean() == pytest.approx(1 - n / R, abs=0.04)
    assert firsts.max() <= 1.1 * R + 1, "later than R turns"
    # One row at each turn, drawn anew: the chance that none of n turns' slices holds that turn's row.
    seen = np.zeros((4000, len(taken)), dtype=bool)
    for turn, part in enumerate(taken):
        seen[:, turn] = np.isin(draw.integers(0, units, 4000), part)
    for n in (round(R / 4), round(R), round(1.5 * R)):
        unseen = np.mean(
            [(~seen[:, at : at + n].any(axis=1)).mean() for at in starts if at + n <= len(taken)]
        )
        assert unseen == pytest.approx((1 - 1 / R) ** n, abs=0.04)


def test_the_turns_in_which_all_comes_round_follow_state_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In proportion to the state, and in inverse proportion to the step, until a slice has 64 MiB."""

    def turns(nbytes: int, step: float) -> float:
        with monkeypatch.context() as patch:
            taken = slices(timed(nbytes, patch), 200, step)
        return nbytes / UNIT * len(taken) / sum(len(each) for each in taken)

    first = turns(100 * MIB, 0.1)
    assert turns(200 * MIB, 0.1) == pytest.approx(2 * first, rel=0.05)
    assert turns(200 * MIB, 0.2) == pytest.approx(first, rel=0.05)
    assert turns(512 * MIB, 10.0) == turns(512 * MIB, 20.0)
    assert 8 <= turns(512 * MIB, 20.0) < 9


def test_at_most_64_mib_are_read_at_a_boundary() -> None:
    table = torch.zeros(80 * MIB, dtype=torch.uint8)
    job = Audited(table)
    job.audit.turn(100.0)
    (region,) = job.audit._slice
    assert region[0].stop - region[0].start <= audits.MOST


def test_a_reference_names_what_differs_in_live_memory_and_in_a_copy() -> None:
    live = [torch.zeros(1000, 8), torch.zeros(3 * MIB)]
    job = Audited(*live)
    reference = job.reference()
    copies = [
        StateTensor(state_tensor.name, state_tensor.tensor.clone()) for state_tensor in job.state_tensors
    ]
    assert reference.differs(job.state_tensors, no_pause) == reference.differs(copies, no_pause) == ""
    live[1].numpy()[-1] = 5
    assert reference.differs(copies, no_pause) == ""
    assert reference.differs(job.state_tensors, no_pause).startswith("model/1 was changed in place")
    assert len(job.said) == 1


def test_a_large_reference_is_the_same_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    live = torch.arange(5 * MIB, dtype=torch.int64)
    monkeypatch.setattr(audits, "MOST", MIB)
    job = Audited(live)
    reference = job.reference()
    assert reference.differs(job.state_tensors, no_pause) == ""
    live[4 * MIB + 17] = 0
    assert reference.differs(job.state_tensors, no_pause) != ""


def test_a_large_reference_is_taken_although_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The main thread has ended, and training goes on in another one: every version refuses an executor then."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    live = torch.arange(5 * MIB, dtype=torch.int64)
    job = Audited(live)
    with monkeypatch.context() as ending:
        ending.setattr(threads, "_helpers", threads.ThreadPool("none"))
        ending.setattr(threading.Thread, "start", refused)
        reference = job.reference()
    assert reference.differs(job.state_tensors, no_pause) == ""
    live[4 * MIB + 17] = 0
    assert reference.differs(job.state_tensors, no_pause) != ""
    assert caplog.text == ""


def test_a_reference_that_nobody_wants_any_more_is_given_up() -> None:
    job = Audited(torch.zeros(1000))
    job.audit.want(7)
    job.audit.take(lambda: True)
    assert job.audit.reference is None
    assert job.audit.wanted == -1
    assert job.audit.ready.is_set()


def test_a_reference_is_of_one_boundary() -> None:
    job = Audited(torch.zeros(1000))
    job.reference()
    job.audit.turn(0.1)
    assert job.audit.reference is None


def test_a_comparison_is_called_off_before_the_next_piece() -> None:
    job = Audited(torch.zeros(1000), torch.zeros(1000))
    reference = job.reference()
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        reference.differs(job.state_tensors, pause)
    assert job.said == []


def test_memory_that_was_given_back_is_not_read() -> None:
    """Reading it would end the process."""
    table = torch.zeros(1000)
    job = Audited(table)
    job.audit.turn(1.0)
    table.untyped_storage().resize_(0)
    assert job.audit.look() == ""
    job.audit.turn(1.0)
    assert job.audit._slice == []


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the host, summed up as a device does it."""
    monkeypatch.setattr(audits, "source", lambda name, tensor, kind="sums": source(name, tensor, kind))


@pytest.mark.usefixtures("as_on_a_device")
def test_nothing_is_compared_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison would be computed at each replay, with what is there by then."""
    table = torch.zeros(1000)
    job = Audited(table)
    job.audit.turn(1.0)
    job.audit._fence.devices = (torch.device("cuda", 0),)
    monkeypatch.setattr(audits, "capturing", lambda: True)
    table[0] = 1
    assert job.audit.look() == ""
    monkeypatch.setattr(audits, "capturing", lambda: False)
    assert job.audit.look() == ""
    assert (job.audit._slice, job.audit._later, job.said) == ([], [], [])


@pytest.mark.usefixtures("as_on_a_device")
def test_a_save_waits_for_a_comparison_on_the_device_and_training_does_not() -> None:
    table = torch.zeros(1000)
    job = Audited(table)
    job.audit.turn(1.0)
    assert job.audit.look(wait=True) == ""
    table[617] = 1
    assert job.audit.look() == ""
    assert job.audit.look(wait=True).startswith("model/0 was changed in place")


@pytest.mark.usefixtures("as_on_a_device")
def test_a_large_reference_of_a_device_is_launched_by_the_thread_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any other computes on another stream, which the step's kernels do not hold up."""
    monkeypatch.setattr(audits, "_ALONE", 0)
    threads: set[int] = set()
    read = change_detector._Rows.read

    def noted(here: Any, start: int, stop: int) -> Any:
        threads.add(threading.get_ident())
        return read(here, start, stop)

    monkeypatch.setattr(change_detector._Rows, "read", noted)
    job = Audited(torch.zeros(1000), torch.zeros(MIB))
    assert job.reference().differs(job.state_tensors, no_pause) == ""
    assert threads == {threading.get_ident()}
