"""The copy that a background checkpoint is written from: kept, reused, and never more than the host can hold."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest

pytest.importorskip("torch")

import torch

from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.save.local_copy.snapshot import Snapshot
from spotguard.hooks.state.memory_access import available_memory
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.errors import CheckpointError
from tests.fakes.clock import ManualClock
from tests.fakes.training import PATIENCE

pytestmark = pytest.mark.torch

MIB = 2**20


def state_tensors(mib: int = 4) -> tuple[StateTensor, ...]:
    """A weight and its moment, half of it each."""
    halves = [torch.arange(mib * MIB // 8, dtype=torch.float32) + number for number in range(2)]
    return StateTensor("model/w", halves[0]), StateTensor("optimizer/w/exp_avg", halves[1], tier=Tier.MOMENTS)


def within(folder: Path, limit: int, used: int, reclaimable: int = 0) -> Snapshot:
    """On a machine with 400 GB, in a container with so many MiB."""
    (folder / "meminfo").write_text("MemTotal: 500000000 kB\nMemAvailable: 400000000 kB\n")
    (folder / "memory.max").write_text(f"{limit * MIB}\n")
    (folder / "memory.current").write_text(f"{used * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {reclaimable * MIB}\n")
    made = Snapshot()
    made.available = partial(available_memory, folder / "meminfo", folder)
    return made


def scope() -> CancelScope:
    return CancelScope(ManualClock())


def test_a_copy_is_the_state_of_that_instant() -> None:
    """Bit for bit and tier for tier; what training does next does not reach it."""
    live = state_tensors()
    before = [state_tensor.tensor.clone() for state_tensor in live]
    copies = Snapshot().take(live, scope())
    live[0].tensor.add_(1)
    assert all(torch.equal(copy.tensor, was) for copy, was in zip(copies, before, strict=True))
    assert [(copy.name, copy.tier, copy.still) for copy in copies] == [
        ("model/w", Tier.WEIGHTS, True),
        ("optimizer/w/exp_avg", Tier.MOMENTS, True),
    ]


@pytest.mark.parametrize(("used", "reclaimable", "fits"), [(483, 0, True), (485, 0, False), (600, 120, True)])
def test_the_containers_limit_counts(tmp_path: Path, used: int, reclaimable: int, fits: bool) -> None:
    """Of 1000 MiB: 4 for the copy, and 512 for others. Without them nothing is copied, and none is held."""
    snapshot = within(tmp_path, 1000, used, reclaimable)
    if fits:
        snapshot.take(state_tensors(), scope())
        return
    with pytest.raises(CheckpointError, match=r"needs 4 MiB .* but 515 MiB are free: .*--every off"):
        snapshot.take(state_tensors(), scope())
    assert snapshot._blocks == []


def test_a_second_copy_needs_no_more_memory(tmp_path: Path) -> None:
    """The second copy goes where the first one lay, however full the host is by then."""
    snapshot = within(tmp_path, 1000, 400)
    live = state_tensors()
    first = snapshot.take(live, scope())
    (tmp_path / "memory.current").write_text(f"{1000 * MIB}\n")
    live[0].tensor.mul_(2)
    second = snapshot.take(live, scope())
    assert [a.tensor.data_ptr() for a in first] == [b.tensor.data_ptr() for b in second]
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(live, second, strict=True))
    with pytest.raises(CheckpointError, match="needs 4 MiB"):
        snapshot.take(state_tensors(8), scope())


def test_a_notice_ends_it_before_the_next_tensor() -> None:
    """It does not wait for the rest of the copy."""
    called_off = scope()
    called_off.abandon("a notice came")
    with pytest.raises(Abandoned, match="a notice came"):
        Snapshot().take(state_tensors(), called_off)


class OnGpu(torch.Tensor):
    """A tensor on the host that says it is on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def on_gpu(mib: int = 4) -> tuple[StateTensor, ...]:
    return tuple(replace(each, tensor=each.tensor.as_subclass(OnGpu)) for each in state_tensors(mib))


class Driver:
    """Memory that the driver gives when a test lets it, in place of `host_memory`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: SimpleQueue[int] = SimpleQueue()
        self.given = threading.Semaphore(0)
        monkeypatch.setattr("spotguard.hooks.save.local_copy.snapshot.host_memory", self.memory)

    def memory(self, nbytes: int, device: object) -> tuple[torch.Tensor, bool]:
        self.asked.put(nbytes)
        assert self.given.acquire(timeout=PATIENCE)
        return torch.zeros(nbytes, dtype=torch.uint8), device is not None


def test_the_memory_for_a_gpus_state_is_taken_beside_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first copy then goes where the memory is, however full the host has become."""
    driver = Driver(monkeypatch)
    snapshot = within(tmp_path, 1000, 400)
    live = on_gpu()
    snapshot.prepare(live)
    assert driver.asked.get(timeout=PATIENCE) == 4 * MIB
    snapshot.prepare(live)  # is under way
    driver.given.release()
    copies = snapshot.take(live, scope())
    (tmp_path / "memory.current").write_text(f"{1000 * MIB}\n")
    again = snapshot.take(live, scope())
    assert [a.tensor.data_ptr() for a in copies] == [b.tensor.data_ptr() for b in again]
    assert all(bool((copy.tensor == each.tensor).all()) for copy, each in zip(copies, live, strict=True))
    assert driver.asked.empty()


def test_the_memory_for_state_on_the_host_is_taken_by_the_first_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    snapshot = Snapshot()
    snapshot.prepare(state_tensors())
    assert (snapshot._attempt, driver.asked.empty()) == (None, True)


def test_a_notice_does_not_wait_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is there for the copy after it."""
    driver = Driver(monkeypatch)
    snapshot, live, noticed = Snapshot(), state_tensors(), scope()
    ended: SimpleQueue[BaseException] = SimpleQueue()

    def take() -> None:
        try:
            snapshot.take(live, noticed)
        except Abandoned as why:
            ended.put(why)

    saver = threading.Thread(target=take)
    saver.start()
    driver.asked.get(timeout=PATIENCE)
    noticed.abandon("a notice came")
    assert "a notice came" in str(ended.get(timeout=PATIENCE))
    saver.join()
    driver.given.release()
    copies = snapshot.take(live, scope())
    assert torch.equal(copies[1].tensor, live[1].tensor)
    assert driver.asked.empty()


def test_a_closed_snapshot_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the block that is under way: a thread in the driver when Python ends would abort the process."""
    driver = Driver(monkeypatch)
    snapshot = Snapshot()
    snapshot.prepare(on_gpu(130))  # two blocks
    driver.asked.get(timeout=PATIENCE)
    closing = threading.Thread(target=snapshot.close)
    closing.start()
    while not snapshot._closed:
        assert closing.is_alive()
    driver.given.release(2)
    closing.join()
    assert snapshot._attempt is not None
    assert snapshot._attempt.done.is_set()
    assert driver.asked.empty()


def test_a_host_without_memory_is_told_at_the_first_copy(tmp_path: Path) -> None:
    snapshot = within(tmp_path, 1000, 600)
    snapshot.prepare(on_gpu())
    with pytest.raises(CheckpointError, match="needs 4 MiB"):
        snapshot.take(on_gpu(), scope())
    assert snapshot._blocks == []


def test_a_block_is_kept_while_all_of_its_copies_are_wanted() -> None:
    """A small copy would keep the memory of a large one beside it, which nobody would count."""
    small, large = torch.ones(2), torch.ones(MIB)
    snapshot, asked = Snapshot(), []

    first = snapshot.take((StateTensor("small", small), StateTensor("large", large)), scope())
    monkey = snapshot._check_memory

    def check(need: int) -> None:
        asked.append(need)
        monkey(need)

    snapshot._check_memory = check  # type: ignore[method-assign]
    larger = torch.ones(2 * MIB)
    second = snapshot.take((StateTensor("small", small), StateTensor("large", larger)), scope())
    assert asked[0] == 4 * MIB
    assert len(snapshot._blocks) == 1
    assert first[0].tensor.data_ptr() != second[0].tensor.data_ptr()
    assert torch.equal(second[1].tensor, larger)


def test_a_refused_pin_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next blocks are not pinned: where the driver refuses one, it refuses the others."""
    devices = []

    def memory(nbytes: int, device: object) -> tuple[torch.Tensor, bool]:
        devices.append(device)
        return torch.zeros(nbytes, dtype=torch.uint8), False

    monkeypatch.setattr("spotguard.hooks.save.local_copy.snapshot.host_memory", memory)
    Snapshot().take(on_gpu(130), scope())
    assert devices == [torch.device("cpu"), None]


def test_copies_of_many_shapes_do_not_overlap() -> None:
    """Small ones share a block, a large one has its own; also numbers, and tensors without an element."""
    shapes = [(3,), (), (0, 4), (5, 7), (2**24 + 1,), (1,), (9, 1000, 1000), (2,)]
    live = tuple(
        StateTensor(f"model/{i}", torch.full(shape, float(i)).to(torch.bfloat16 if i % 2 else torch.float32))
        for i, shape in enumerate(shapes)
    )
    snapshot = Snapshot()
    copies = snapshot.take(live, scope())
    assert all(torch.equal(copy.tensor, each.tensor) for copy, each in zip(copies, live, strict=True))
    assert [copy.tensor.dtype for copy in copies] == [each.tensor.dtype for each in live]
    starts = sorted((copy.tensor.data_ptr(), copy.tensor.nbytes) for copy in copies if copy.tensor.nbytes)
    assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(starts))


def test_an_error_of_one_attempt_fails_no_later_one() -> None:
    """The state grew, and did not fit; it is again what it was, and the host has room, or not."""
    snapshot, free = Snapshot(), [10 * 2**30]

    def available(meminfo: Path = Path(), cgroups: Path = Path()) -> int:
        return free[0]

    snapshot.available = available
    live = state_tensors()
    grown = (*live, StateTensor("ema", torch.ones(MIB)))
    first = snapshot.take(live, scope())
    free[0] = 100 * MIB
    for _ in range(2):
        with pytest.raises(CheckpointError, match="100 MiB are free"):
            snapshot.take(grown, scope())
    again = snapshot.take(live, scope())
    assert [a.tensor.data_ptr() for a in first] == [b.tensor.data_ptr() for b in again]
    free[0] = 10 * 2**30
    assert [each.name for each in snapshot.take(grown, scope())] == [each.name for each in grown]


def test_memory_that_did_not_fit_ahead_is_no_error_of_a_copy_that_needs_none(tmp_path: Path) -> None:
    snapshot = within(tmp_path, 1000, 400)
    live = state_tensors()
    snapshot.take(live, scope())
    (tmp_path / "memory.current").write_text(f"{600 * MIB}\n")
    snapshot.prepare((*live, *on_gpu(130)))
    assert snapshot.take(live, scope())[0].still
