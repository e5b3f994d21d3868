"""Tensors into objects: split, checked, in parallel, with bounded memory, and never a manifest before its time."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName, checkpoint_prefix
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.commit.plan.write_plan import WriteProgress
from spotguard.hooks.commit.upload.transfer import StateChanged
from spotguard.hooks.state.device.streams import CopyStreams
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import DeniedError
from spotguard.providers.stores.file import FileStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.store import FakeStore, Fault
from tests.fakes.watched_store import PATIENCE, WatchedStore
from tests.hooks.commit.writes import NAME, OBJECT, state_tensors, write, writer_of

pytestmark = pytest.mark.torch


def test_a_tensor_larger_than_an_object_is_split(folder: Path) -> None:
    """Along its first dimension, row-major; each piece has its own checksum and place."""
    big = torch.arange(OBJECT // 4 * 2 + 1000, dtype=torch.float32).view(-1, 8)
    written = write(FileStore(folder), state_tensors(big=big, small=torch.ones(3)))
    chunks = written.tensors[0].chunks
    assert len(chunks) > 2
    assert sum(chunk.sizes[0] for chunk in chunks) == big.shape[0]
    assert all(entry.size <= OBJECT for entry in written.objects)


@pytest.mark.parametrize("deadline", [None, 1e9])
def test_moments_that_wait_for_the_weights_go_by_all_hands_then(deadline: float | None) -> None:
    """Whether anybody is in a hurry or not."""
    store, meeting = WatchedStore(), threading.Barrier(3)
    each = [StateTensor(f"m{n}", torch.ones(2**14), tier=Tier.MOMENTS) for n in range(3)]

    def meet(request: Request) -> None:
        if request.key.endswith(("/0001.safetensors", "/0002.safetensors", "/0003.safetensors")):
            meeting.wait(PATIENCE)

    with writer_of(CalledStore(store, meet), 2**16) as writer:
        state_tensors = [StateTensor("w", torch.ones(2**10)), *each]
        write_progress = WriteProgress(writer.plans.of(state_tensors), weights_ahead=True)
        assert write_progress.write_plan.indices_of(Tier.WEIGHTS) == [0]
        assert len(write_progress.write_plan.objects) > 3
        store.hold(lambda key: key.endswith("/0000.safetensors"))
        queue = writer.queue(
            state_tensors, NAME, CancelScope(SystemClock(), deadline), write_progress=write_progress
        )
        queue.objects()
        assert store.reached.wait(PATIENCE)
        assert store.calls == []
        store.let_go()
        assert queue.wait(queue.whole)
        assert len(store.objects) == len(write_progress.write_plan.objects)


def test_each_object_is_a_file_of_safetensors(folder: Path) -> None:
    """Anybody's library opens it and finds the tensors, by name, with their values."""
    safetensors = pytest.importorskip("safetensors.torch")
    big = torch.rand(OBJECT // 4 + 10)
    tensors = {
        "big": big,
        "half": torch.rand(3, 4).to(torch.bfloat16),
        "turned": torch.rand(5, 6).mT,
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
    }
    written = write(FileStore(folder), state_tensors(**tensors))
    found: dict[str, torch.Tensor] = {}
    for entry in written.objects:
        found |= safetensors.load_file(folder / checkpoint_prefix("run", NAME) / entry.name)
    pieces = [found[name] for name in sorted((n for n in found if n.startswith("big")), key=_offset)]
    assert torch.equal(torch.cat(pieces), big)
    for name in ("half", "turned", "flags", "scalar"):
        assert torch.equal(found[name], tensors[name])
        assert found[name].dtype == tensors[name].dtype


def _offset(label: str) -> int:
    return int(label.partition("@")[2] or 0)


def test_memory_stays_at_its_frames() -> None:
    """Whatever the size of the state: a few frames, reused for one object after the other and for the next save."""
    store = FakeStore()
    with writer_of(store) as writer:
        what = state_tensors(**{f"t{n}": torch.zeros(OBJECT // 4) for n in range(6)})
        writer.write(what, NAME, CancelScope(SystemClock()))
        buffers = [worker.buffer for worker in writer.uploads.pool.workers]
        assert len(buffers) <= store.parallel
        assert sum(buffer.size for buffer in buffers) <= store.parallel * OBJECT
        writer.write(what, CheckpointName(1, 6, 1), CancelScope(SystemClock()))
        assert [worker.buffer for worker in writer.uploads.pool.workers] == buffers


def test_the_last_object_written_is_the_last_word() -> None:
    """Progress: the first byte once, and "written" when all of it is in the store."""
    heard: list[tuple[str, int, int]] = []
    store = FakeStore()
    what = state_tensors(**{f"t{n}": torch.zeros(OBJECT // 4) for n in range(3)})
    with writer_of(store) as writer:
        writer.write(what, NAME, CancelScope(SystemClock()), lambda *words: heard.append(words))
    phases = [phase for phase, _, _ in heard]
    assert phases[0] == "first-byte"
    assert phases[-1] == "written"
    assert phases.count("first-byte") == phases.count("written") == 1
    assert heard[-1][1] == heard[-1][2] == sum(map(len, store.objects.values()))


def test_called_off_in_the_middle_it_stops(folder: Path) -> None:
    """No further object is begun; `Abandoned` says why."""
    store = WatchedStore()
    scope = CancelScope(SystemClock())
    what = state_tensors(**{f"t{n}": torch.zeros(OBJECT // 4) for n in range(5)})
    ended: list[str] = []

    def save() -> None:
        with writer_of(store) as writer:
            try:
                writer.write(what, NAME, scope)
            except Abandoned as why:
                ended.append(str(why))

    store.hold(lambda key: True)
    thread = threading.Thread(target=save)
    thread.start()
    assert store.reached.wait(PATIENCE)
    scope.abandon("a notice came")
    store.let_go()
    thread.join(PATIENCE)
    assert ended == ["a notice came"]
    assert len(store.objects) <= FakeStore().parallel


def test_an_object_that_moved_while_it_was_read_is_not_put() -> None:
    """Asked after each object's bytes were read, before they are put."""
    store = FakeStore()
    with pytest.raises(StateChanged, match="it moved"):
        write(store, state_tensors(a=torch.zeros(10)), moved=lambda: "it moved")
    assert store.objects == {}


def test_a_look_at_the_state_waits_for_no_kernel_of_training() -> None:
    """On every device that holds some of it, it is taken on the stream that the frame copies by."""
    log: list[str] = []

    class Streams(CopyStreams):
        @contextmanager
        def on(self, device: torch.device) -> Iterator[None]:
            log.append(f"on {device}")
            yield
            log.append("off")

    with writer_of(FakeStore()) as writer:
        writer.uploads.warm(1)
        for worker in writer.uploads.pool.workers:
            worker.buffer._streams = Streams()
        what = state_tensors(a=torch.ones(1), b=torch.ones(2, device="cpu"))

        def moved() -> str:
            log.append("look")
            return ""

        writer.write(what, NAME, CancelScope(SystemClock()), moved=moved)
        assert log == ["on cpu", "look", "off"]


def test_several_threads_fail_as_one() -> None:
    """The first error comes out, once; the others stop, and wait for the next save."""
    store = FakeStore()
    with writer_of(store) as writer:
        store.faults = [Fault(n, error=lambda: DeniedError("no")) for n in range(8)]
        what = state_tensors(**{f"t{n}": torch.zeros(OBJECT // 4) for n in range(4)})
        with pytest.raises(DeniedError, match="no"):
            writer.write(what, NAME, CancelScope(SystemClock()))
        assert len(store.calls) <= FakeStore().parallel
        assert all(worker.free for worker in writer.uploads.pool.workers)


def test_nothing_is_a_state_too() -> None:
    """No tensors, or only empty ones: no objects, and a manifest may follow."""
    store = FakeStore()
    written = write(store, state_tensors(empty=torch.empty(0, 3)))
    assert written.objects == ()
    assert written.tensors[0].shape == (0, 3)
    assert write(store, []).tensors == ()
    assert store.objects == {}


def test_the_store_is_handed_the_crc_of_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one tensor or of many: where no service checks the bytes, it is the only check on their way."""
    store, crcs = FakeStore(), dict[str, int | None]()
    put = FakeStore.put

    def noted(store: FakeStore, key: str, data: memoryview, **how: Any) -> None:
        crcs[key] = how["crc32"]
        put(store, key, data, **how)

    monkeypatch.setattr(FakeStore, "put", noted)
    many = {f"small{n}": torch.full((n % 7 + 1,), float(n)) for n in range(200)}
    write(store, state_tensors(big=torch.rand(OBJECT // 4 + 10), **many))
    assert len(store.objects) >= 2
    assert crcs == {key: zlib.crc32(data) for key, data in store.objects.items()}


def test_how_far_it_is_counts_what_left(folder: Path) -> None:
    """By pieces, not by objects: it never goes back, and ends with all of it."""
    told: list[tuple[str, int, int]] = []
    with writer_of(FileStore(folder)) as writer:
        what = state_tensors(**{f"t{n}": torch.zeros(OBJECT // 4) for n in range(3)})
        writer.write(what, NAME, CancelScope(SystemClock()), lambda *words: told.append(words))
        assert [told[0][0], told[-1][0]] == ["first-byte", "written"]
        assert len(told) > 6
        assert told[-1][1] == told[-1][2] == max(done for _, done, _ in told)
