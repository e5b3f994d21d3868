"""A second look names what changed; what is as an earlier checkpoint has it is neither read again nor put again."""

from __future__ import annotations

import zlib

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName, checkpoint_prefix
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.plan.bin_packing import OBJECT_BYTES
from spotguard.hooks.commit.plan.throughput import StoreLink
from spotguard.hooks.commit.plan.write_plan import WriteProgress
from spotguard.hooks.state.device.host_buffer import HostBuffer
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UnavailableError
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import Impatient, ManualClock
from tests.fakes.store import FakeStore
from tests.hooks.commit.writes import NAME, OBJECT, writer_of

pytestmark = pytest.mark.torch


def test_a_second_look_names_what_changed() -> None:
    """Of the tensors that anybody may change; those that only an optimizer changes are not read twice."""
    mine, other = torch.zeros(5), torch.zeros(5)
    what = [StateTensor("mine", mine, still=True), StateTensor("other", other)]
    store = FakeStore()
    scope = CancelScope(SystemClock())
    with writer_of(store) as writer:
        written = writer.write(what, NAME, scope)
        assert writer.unchanged(what, written, scope) == ""
        mine.data.fill_(1)
        assert writer.unchanged(what, written, scope) == ""
        other.data.fill_(1)
        assert writer.unchanged(what, written, scope) == "other"


def adapted() -> list[StateTensor]:
    """A base that nobody trains, and an adapter."""
    return [
        StateTensor("base", torch.arange(2.0**22), tier=Tier.FROZEN),
        StateTensor("adapter", torch.ones(2**20)),
    ]


def test_bytes_equal_to_an_earlier_checkpoints_are_not_read_again() -> None:
    """Its bytes are those of a boundary; a part of it that moved has all of it looked at a second time."""
    scope = CancelScope(SystemClock())
    with writer_of(FakeStore(), OBJECT_BYTES) as writer:
        what = [*adapted(), StateTensor("other", torch.zeros(8), tier=Tier.FROZEN)]
        base, adapter, other = [state_tensor.tensor for state_tensor in what]
        write_progress = WriteProgress(write_plan := writer.plans.of(what))
        assert writer.write(what, NAME, scope, write_progress=write_progress).as_before == frozenset()
        assert writer.second_look(what, write_plan) == (base.nbytes + other.nbytes + adapter.nbytes) / 1e9
        writer.plans.committed(write_progress)
        assert writer.second_look(what, write_plan) == adapter.nbytes / 1e9
        written = writer.write(what, CheckpointName(1, 6, 1), scope)
        assert written.as_before == {"base", "other"}
        base[5] = -1.0
        assert writer.unchanged(what, written, scope) == ""
        adapter[5] = 2.0
        assert writer.unchanged(what, written, scope) == "adapter"
        written = writer.write(what, CheckpointName(1, 7, 2), scope)
        assert written.as_before == frozenset()
        base[5] = -2.0
        assert writer.unchanged(what, written, scope) == "base"


@pytest.mark.parametrize("moves", [False, True])
def test_another_shape_elsewhere_is_no_reason_to_put_a_frozen_base_anew(moves: bool) -> None:
    """Unless its objects have another number by now: then it is whole where it is looked for."""
    store = FakeStore()
    scope = CancelScope(SystemClock())
    with writer_of(store) as writer:
        base = StateTensor("base", torch.arange(OBJECT / 4), tier=Tier.FROZEN)
        write_progress = WriteProgress(writer.plans.of(what := [StateTensor("cache", torch.zeros(3)), base]))
        writer.write(what, NAME, scope, write_progress=write_progress)
        writer.plans.committed(write_progress)
        what[0] = StateTensor("cache", torch.zeros(OBJECT // 2 if moves else 4))
        write_progress = WriteProgress(write_plan := writer.plans.of(what))
        written = writer.write(what, name := CheckpointName(1, 6, 1), scope, write_progress=write_progress)
        assert write_progress.spared == (set() if moves else set(write_plan.indices_of(Tier.FROZEN)))
        for entry in written.objects:
            folder = CheckpointName.parse(entry.checkpoint) if entry.checkpoint else name
            assert folder is not None
            assert len(store.objects[checkpoint_prefix("run", folder) + entry.name]) == entry.size
        base.tensor[7] = -1.0
        write_progress = WriteProgress(write_plan)
        writer.write(what, CheckpointName(1, 7, 2), scope, write_progress=write_progress)
        assert len(write_progress.spared) == (0 if moves else len(write_plan.indices_of(Tier.FROZEN)) - 1)


@pytest.mark.parametrize("gone", [False, True])
def test_a_store_that_lists_nothing_is_asked_for_a_byte_of_each_object(gone: bool) -> None:
    """So a listing that fails to the end costs no save that refers to earlier objects; one that is gone is put anew."""

    def no_list(request: Request) -> None:
        if request.verb == "list":
            raise UnavailableError("the listing did not end in time")

    below = FakeStore()
    store = CalledStore(below, no_list)
    scope = CancelScope(Impatient())
    with writer_of(store) as writer:
        base = StateTensor("base", torch.arange(OBJECT / 4), tier=Tier.FROZEN)
        write_progress = WriteProgress(write_plan := writer.plans.of([base]))
        first = writer.write([base], NAME, scope, write_progress=write_progress)
        writer.plans.committed(write_progress)
        lost = checkpoint_prefix("run", NAME) + first.objects[-1].name
        if gone:
            below.delete([lost])
        name = CheckpointName(1, 6, 1)
        written = writer.write([base], name, scope, write_progress=WriteProgress(write_plan))
        assert [entry.checkpoint for entry in written.objects] == [
            "" if gone and entry.name == first.objects[-1].name else str(NAME) for entry in written.objects
        ]
        assert (checkpoint_prefix("run", name) + first.objects[-1].name in below.objects) is gone


def test_a_second_look_is_reckoned_by_what_the_last_one_took() -> None:
    clock = Impatient()
    with writer_of(FakeStore(), OBJECT_BYTES) as writer:
        scope = CancelScope(clock)
        what = adapted()[:1]
        written = writer.write(what, NAME, scope)

        def checked() -> None:
            clock.now += 0.5

        scope.check = checked  # type: ignore[method-assign]
        assert writer.unchanged(what, written, scope) == ""
        assert writer.second_look(what, writer.plans.of(what)) == 0.5 * len(written.objects)


def test_hashing_what_is_not_sent_is_not_the_link_s_time() -> None:
    """Else a link looks silent while the frozen base is read, and the moments are given up."""
    clock = ManualClock()
    store = CalledStore(FakeStore(), lambda _: clock.advance(1.0))
    store.parallel = 1
    what = [*adapted(), StateTensor("moment", torch.ones(2**20), tier=Tier.MOMENTS)]
    with writer_of(store, OBJECT_BYTES) as writer:
        write_plan = writer.plans.of(what)

        def fill(index: int, buffer: HostBuffer) -> list[int]:
            planned = write_plan.objects[index]
            clock.advance(60.0 if planned.tier is Tier.FROZEN else 0.0)
            buffer.write(0, planned.header + bytes(planned.size - len(planned.header)))
            return [zlib.crc32(bytes(piece.end - piece.start)) for piece in planned.pieces]

        write_progress = WriteProgress(write_plan)
        writer.write(what, NAME, CancelScope(clock), write_progress=write_progress, fill=fill)
        writer.plans.committed(write_progress)
        writer.uploads.link = StoreLink()
        write_progress = WriteProgress(write_plan)
        writer.write(
            what, CheckpointName(1, 6, 1), CancelScope(clock), write_progress=write_progress, fill=fill
        )
        assert write_progress.spared == set(write_plan.indices_of(Tier.FROZEN))
        assert (known := writer.uploads.link.rate(clock.monotonic())) is not None
        assert known.expected == pytest.approx(4 * 2**20, rel=0.01)
