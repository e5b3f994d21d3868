"""The copy that a background checkpoint is written from: kept, reused, and never more than the host can hold."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spotguard.hooks.save.cancel_scope import Abandoned, CancelScope  # noqa: E402 - after the skip
from spotguard.hooks.save.local_copy import Snapshot  # noqa: E402
from spotguard.hooks.state.host_buffer import available_memory  # noqa: E402
from spotguard.hooks.state.tensor_item import StateTensor, Tier  # noqa: E402
from spotguard.providers.errors import CheckpointError  # noqa: E402
from tests.fakes.clock import ManualClock  # noqa: E402

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
    assert snapshot._held == {}


def test_what_it_holds_already_needs_no_memory(tmp_path: Path) -> None:
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


def test_its_memory_is_taken_beside_training(tmp_path: Path) -> None:
    """The first copy then goes where the memory is, however full the host has become."""
    snapshot = within(tmp_path, 1000, 400)
    live = state_tensors()
    snapshot.prepare_beside(live)
    assert snapshot._thread is not None
    snapshot._thread.join()
    (tmp_path / "memory.current").write_text(f"{1000 * MIB}\n")
    copies = snapshot.take(live, scope())
    assert all(torch.equal(copy.tensor, each.tensor) for copy, each in zip(copies, live, strict=True))


def test_a_host_without_memory_is_left_alone_until_the_first_copy(tmp_path: Path) -> None:
    snapshot = within(tmp_path, 1000, 600)
    snapshot.prepare_beside(state_tensors())
    assert snapshot._thread is not None
    snapshot._thread.join()
    assert snapshot._held == {}
    with pytest.raises(CheckpointError, match="needs 4 MiB"):
        snapshot.take(state_tensors(), scope())


def test_a_closed_snapshot_takes_no_more_memory() -> None:
    snapshot = Snapshot()
    snapshot.close()
    snapshot.prepare_beside(state_tensors())
    assert snapshot._thread is not None
    snapshot._thread.join()
    assert snapshot._held == {}


def test_copies_of_many_shapes_lie_apart() -> None:
    """Small ones share a block, a large one has its own; also numbers, and tensors without an element."""
    shapes = [(3,), (), (0, 4), (5, 7), (2**25,), (1,), (9, 1000, 1000), (2,)]
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
