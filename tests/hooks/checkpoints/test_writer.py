"""Tensors into objects: split, checked, in parallel, with bounded memory, and never a manifest before its time."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from spotguard.hooks.checkpoints.draft import Draft, Written
from spotguard.hooks.checkpoints.effort import Abandoned, Effort
from spotguard.hooks.checkpoints.frames import Frame
from spotguard.hooks.checkpoints.rate import Link
from spotguard.hooks.checkpoints.retry import retry
from spotguard.hooks.checkpoints.writer import Spoiled, Writer
from spotguard.hooks.format.chunks import OBJECT_BYTES
from spotguard.hooks.format.keys import CheckpointName, checkpoint_prefix
from spotguard.hooks.format.leaf import Leaf, Tier
from spotguard.hooks.state.device import SideStreams
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CorruptError, DeniedError, StoreError, UnavailableError
from spotguard.providers.stores.localfs import FileStore
from spotguard.providers.stores.store import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import Impatient, ManualClock
from tests.fakes.store import FakeStore, Fault
from tests.fakes.watched_store import PATIENCE, WatchedStore

pytestmark = pytest.mark.torch

NAME = CheckpointName(1, 5, 0)


def leaves(**tensors: torch.Tensor) -> list[Leaf]:
    return [Leaf(name, tensor) for name, tensor in tensors.items()]


def write(store: FakeStore | FileStore, what: list[Leaf], moved: Callable[[], str] = str) -> Written:
    writer = Writer(store, "run")
    try:
        return writer.write(what, NAME, Effort(SystemClock()), moved=moved)
    finally:
        writer.close()


def test_a_tensor_larger_than_an_object_is_split(folder: Path) -> None:
    """Along its first dimension, row-major; each piece has its own checksum and place."""
    big = torch.arange(OBJECT_BYTES // 4 * 2 + 1000, dtype=torch.float32).view(-1, 8)
    written = write(FileStore(folder), leaves(big=big, small=torch.ones(3)))
    chunks = written.tensors[0].chunks
    assert len(chunks) > 2
    assert sum(chunk.sizes[0] for chunk in chunks) == big.shape[0]
    assert all(entry.size <= OBJECT_BYTES for entry in written.objects)


def test_each_object_is_a_file_of_safetensors(folder: Path) -> None:
    """Anybody's library opens it and finds the tensors, by name, with their values."""
    safetensors = pytest.importorskip("safetensors.torch")
    big = torch.rand(OBJECT_BYTES // 4 + 10)
    tensors = {
        "big": big,
        "half": torch.rand(3, 4).to(torch.bfloat16),
        "turned": torch.rand(5, 6).mT,
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
    }
    written = write(FileStore(folder), leaves(**tensors))
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
    writer = Writer(store, "run")
    what = leaves(**{f"t{n}": torch.zeros(OBJECT_BYTES // 4) for n in range(6)})
    writer.write(what, NAME, Effort(SystemClock()))
    frames = [hand.frame for hand in writer._crew.hands]
    assert len(frames) <= store.parallel
    assert sum(frame.size for frame in frames) <= FakeStore().parallel * OBJECT_BYTES < 512 * 2**20
    writer.write(what, CheckpointName(1, 6, 1), Effort(SystemClock()))
    assert [hand.frame for hand in writer._crew.hands] == frames
    writer.close()


def test_the_last_object_written_is_the_last_word() -> None:
    """Progress: the first byte once, and "written" when all of it is in the store."""
    heard: list[tuple[str, int, int]] = []
    store = FakeStore()
    what = leaves(**{f"t{n}": torch.zeros(OBJECT_BYTES // 4) for n in range(3)})
    Writer(store, "run").write(
        what, NAME, Effort(SystemClock()), lambda phase, done, total: heard.append((phase, done, total))
    )
    phases = [phase for phase, _, _ in heard]
    assert phases[0] == "first-byte"
    assert phases[-1] == "written"
    assert phases.count("first-byte") == phases.count("written") == 1
    assert heard[-1][1] == heard[-1][2] == sum(map(len, store.objects.values()))


def test_called_off_in_the_middle_it_stops(folder: Path) -> None:
    """No further object is begun; `Abandoned` says why."""
    store = WatchedStore()
    effort = Effort(SystemClock())
    what = leaves(**{f"t{n}": torch.zeros(OBJECT_BYTES // 4) for n in range(5)})
    ended: list[str] = []

    def save() -> None:
        try:
            Writer(store, "run").write(what, NAME, effort)
        except Abandoned as why:
            ended.append(str(why))

    store.hold(lambda key: True)
    thread = threading.Thread(target=save)
    thread.start()
    assert store.reached.wait(PATIENCE)
    effort.abandon("a notice came")
    store.let_go()
    thread.join(PATIENCE)
    assert ended == ["a notice came"]
    assert len(store.objects) <= FakeStore().parallel


def test_what_moved_while_it_was_read_is_not_put() -> None:
    """Asked after each object's bytes were read, before they are put."""
    store = FakeStore()
    with pytest.raises(Spoiled, match="it moved"):
        write(store, leaves(a=torch.zeros(10)), moved=lambda: "it moved")
    assert store.objects == {}


def test_a_look_at_the_state_waits_for_no_kernel_of_training() -> None:
    """On every device that holds some of it, it is taken on the stream that the frame copies by."""
    log: list[str] = []

    class Streams(SideStreams):
        @contextmanager
        def on(self, device: torch.device) -> Iterator[None]:
            log.append(f"on {device}")
            yield
            log.append("off")

    writer = Writer(FakeStore(), "run")
    writer.warm(1)
    for hand in writer._crew.hands:
        hand.frame._streams = Streams()
    what = leaves(a=torch.ones(1), b=torch.ones(2, device="cpu"))

    def moved() -> str:
        log.append("look")
        return ""

    writer.write(what, NAME, Effort(SystemClock()), moved=moved)
    writer.close()
    assert log == ["on cpu", "look", "off"]


def test_several_threads_fail_as_one() -> None:
    """The first error comes out, once; the others stop, and wait for the next save."""
    store = FakeStore()
    writer = Writer(store, "run")
    store.faults = [Fault(n, error=lambda: DeniedError("no")) for n in range(8)]
    what = leaves(**{f"t{n}": torch.zeros(OBJECT_BYTES // 4) for n in range(4)})
    with pytest.raises(DeniedError, match="no"):
        writer.write(what, NAME, Effort(SystemClock()))
    assert len(store.calls) <= FakeStore().parallel
    assert all(hand.free for hand in writer._crew.hands)
    writer.close()


def test_what_fails_for_now_is_asked_again_and_what_is_refused_is_not() -> None:
    """The same bytes under the same key, so asking again is safe."""
    store = FakeStore()
    store.faults = [Fault(0), Fault(1, after=True)]
    written = write(store, leaves(a=torch.ones(4)))
    assert [verb for verb, _ in store.calls] == ["put"] * 3
    assert len({key for _, key in store.calls}) == 1
    assert len(written.objects) == 1


def test_pauses_grow_and_end_with_the_save() -> None:
    """0.1 s, doubled up to 2 s, the last cut by the deadline; and what the store said last is kept."""
    clock, offered = Impatient(), []

    def ask(left: float | None) -> None:
        offered.append(left)
        raise UnavailableError("not now")

    with pytest.raises(Abandoned, match="out of time; the store said last: not now"):
        retry(Effort(clock, 6.0), ask)
    assert clock.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 0.9]
    assert offered == pytest.approx([6.0, 5.9, 5.7, 5.3, 4.5, 2.9, 0.9])


def test_an_answer_takes_the_seconds_of_the_request_that_brought_it() -> None:
    """Not those for which the store was away: the next commit is planned by it."""
    clock, writer, tries = Impatient(), Writer(FakeStore(), "run"), []

    def ask(left: float | None) -> None:
        tries.append(left)
        clock.now += 0.25
        if len(tries) < 6:
            raise UnavailableError("away")

    assert writer.ask(ask, Effort(clock)) == 0.25
    assert clock.now > 5
    assert writer.ask(ask, Effort(clock), again=False) == 0.25
    writer.close()


def test_an_error_that_cannot_heal_ends_at_once() -> None:
    """A refused put is not repeated."""
    calls: list[int] = []

    def ask(left: float | None) -> None:
        calls.append(1)
        raise StoreError("never")

    with pytest.raises(StoreError, match="never"):
        retry(Effort(ManualClock()), ask)
    assert calls == [1]


def test_a_second_look_names_what_changed() -> None:
    """Of the tensors that anybody may change; those that only an optimizer changes are not read twice."""
    mine, other = torch.zeros(5), torch.zeros(5)
    what = [Leaf("mine", mine, still=True), Leaf("other", other)]
    store = FakeStore()
    writer, effort = Writer(store, "run"), Effort(SystemClock())
    written = writer.write(what, NAME, effort)
    assert writer.unchanged(what, written, effort) == ""
    mine.data.fill_(1)
    assert writer.unchanged(what, written, effort) == ""
    other.data.fill_(1)
    assert writer.unchanged(what, written, effort) == "other"


def adapted() -> list[Leaf]:
    """A base that nobody trains, and an adapter."""
    return [Leaf("base", torch.arange(2.0**22), tier=Tier.FROZEN), Leaf("adapter", torch.ones(2**20))]


def test_what_is_as_an_earlier_checkpoint_has_it_is_not_read_again() -> None:
    """Its bytes are those of a boundary; a part of it that moved has all of it looked at a second time."""
    writer, effort = Writer(FakeStore(), "run"), Effort(SystemClock())
    what = [*adapted(), Leaf("other", torch.zeros(8), tier=Tier.FROZEN)]
    base, adapter, other = [leaf.tensor for leaf in what]
    draft = Draft(outline := writer.outline(what))
    assert writer.write(what, NAME, effort, draft=draft).as_before == frozenset()
    assert writer.second_look(what, outline) == (base.nbytes + other.nbytes + adapter.nbytes) / 1e9
    writer.committed(draft)
    assert writer.second_look(what, outline) == adapter.nbytes / 1e9
    written = writer.write(what, CheckpointName(1, 6, 1), effort)
    assert written.as_before == {"base", "other"}
    base[5] = -1.0
    assert writer.unchanged(what, written, effort) == ""
    adapter[5] = 2.0
    assert writer.unchanged(what, written, effort) == "adapter"
    written = writer.write(what, CheckpointName(1, 7, 2), effort)
    assert written.as_before == frozenset()
    base[5] = -2.0
    assert writer.unchanged(what, written, effort) == "base"
    writer.close()


@pytest.mark.parametrize("moves", [False, True])
def test_another_shape_elsewhere_is_no_reason_to_put_a_frozen_base_anew(moves: bool) -> None:
    """Unless its objects have another number by now: then it is whole where it is looked for."""
    store = FakeStore()
    writer, effort = Writer(store, "run"), Effort(SystemClock())
    base = Leaf("base", torch.arange(OBJECT_BYTES / 4), tier=Tier.FROZEN)
    draft = Draft(writer.outline(what := [Leaf("cache", torch.zeros(3)), base]))
    writer.write(what, NAME, effort, draft=draft)
    writer.committed(draft)
    what[0] = Leaf("cache", torch.zeros(OBJECT_BYTES // 2 if moves else 4))
    draft = Draft(outline := writer.outline(what))
    written = writer.write(what, name := CheckpointName(1, 6, 1), effort, draft=draft)
    assert draft.spared == (set() if moves else set(outline.indices_of(Tier.FROZEN)))
    for entry in written.objects:
        folder = CheckpointName.parse(entry.checkpoint) if entry.checkpoint else name
        assert folder is not None
        assert len(store.objects[checkpoint_prefix("run", folder) + entry.name]) == entry.size
    base.tensor[7] = -1.0
    draft = Draft(outline)
    writer.write(what, CheckpointName(1, 7, 2), effort, draft=draft)
    assert len(draft.spared) == (0 if moves else len(outline.indices_of(Tier.FROZEN)) - 1)
    writer.close()


def test_a_second_look_is_reckoned_by_what_the_last_one_took() -> None:
    clock, writer = Impatient(), Writer(FakeStore(), "run")
    effort = Effort(clock)
    what = adapted()[:1]
    written = writer.write(what, NAME, effort)

    def checked() -> None:
        clock.now += 0.5

    effort.check = checked  # type: ignore[method-assign]
    assert writer.unchanged(what, written, effort) == ""
    assert writer.second_look(what, writer.outline(what)) == 0.5 * len(written.objects)
    writer.close()


def test_hashing_what_is_not_sent_is_not_the_link_s_time() -> None:
    """Else a link looks silent while the frozen base is read, and the moments are given up."""
    clock = ManualClock()
    store = CalledStore(FakeStore(), lambda _: clock.advance(1.0))
    store.parallel = 1
    what = [*adapted(), Leaf("moment", torch.ones(2**20), tier=Tier.MOMENTS)]
    writer = Writer(store, "run")
    outline = writer.outline(what)

    def fill(index: int, frame: Frame) -> list[int]:
        planned = outline.objects[index]
        clock.advance(60.0 if planned.tier is Tier.FROZEN else 0.0)
        frame.write(0, planned.header + bytes(planned.size - len(planned.header)))
        return [zlib.crc32(bytes(piece.end - piece.start)) for piece in planned.pieces]

    draft = Draft(outline)
    writer.write(what, NAME, Effort(clock), draft=draft, fill=fill)
    writer.committed(draft)
    writer.link = Link()
    draft = Draft(outline)
    writer.write(what, CheckpointName(1, 6, 1), Effort(clock), draft=draft, fill=fill)
    assert draft.spared == set(outline.indices_of(Tier.FROZEN))
    assert (known := writer.link.rate(clock.monotonic())) is not None
    assert known.expected == pytest.approx(4 * 2**20, rel=0.01)
    writer.close()


def test_nothing_is_a_state_too() -> None:
    """No tensors, or only empty ones: no objects, and a manifest may follow."""
    store = FakeStore()
    written = write(store, leaves(empty=torch.empty(0, 3)))
    assert written.objects == ()
    assert written.tensors[0].shape == (0, 3)
    assert write(store, []).tensors == ()
    assert store.objects == {}


class Lame(CalledStore):
    """The first put of one object hangs."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store, self._hangs)
        self.go = threading.Event()

    def puts(self) -> int:
        """Of that object."""
        return sum(each.key.endswith("/0001.safetensors") for each in self.requests)

    def _hangs(self, request: Request) -> None:
        if request.key.endswith("/0001.safetensors") and self.puts() == 1:
            assert self.go.wait(PATIENCE)


def test_a_put_that_lags_is_sent_again() -> None:
    """Near a deadline, by a thread that has nothing else to do: the save is whole though the first one still hangs."""
    store, clock = WatchedStore(), ManualClock()
    lame = Lame(store)
    writer = Writer(lame, "run")
    what = leaves(**{f"t{n}": torch.full((OBJECT_BYTES // 4,), float(n)) for n in range(5)})
    ended: list[Written] = []
    thread = threading.Thread(
        target=lambda: ended.append(writer.write(what, NAME, Effort(clock, 2000.0))), name="saving"
    )
    thread.start()
    store.wait_for(lambda keys: len(keys) >= 5 and not any("0001.safetensors" in key for key in keys))
    clock.advance(5.0)
    thread.join(PATIENCE)
    written = ended[0]
    assert lame.puts() == 2
    assert not lame.go.is_set()
    for entry in written.objects:
        data = store.objects[checkpoint_prefix("run", NAME) + entry.name]
        assert len(data) == entry.size
    lame.go.set()
    writer.close()


def test_nobody_sends_twice_without_a_deadline() -> None:
    """A background save has time, and the link is training's too."""
    lame = Lame(FakeStore())
    threading.Timer(0.3, lame.go.set).start()
    writer = Writer(lame, "run")
    writer.write(
        leaves(**{f"t{n}": torch.zeros(OBJECT_BYTES // 4) for n in range(3)}), NAME, Effort(SystemClock())
    )
    writer.close()
    assert lame.puts() == 1


def test_the_store_is_handed_the_crc_of_each_object() -> None:
    """Of one tensor or of many: the fake refuses bytes that do not have it."""
    store = FakeStore()
    many = {f"small{n}": torch.full((n % 7 + 1,), float(n)) for n in range(200)}
    write(store, leaves(big=torch.rand(OBJECT_BYTES // 4 + 10), **many))
    assert len(store.objects) >= 2


@pytest.mark.parametrize(("failures", "ends"), [(2, True), (3, False)])
def test_bytes_that_arrive_damaged_are_sent_again(failures: int, ends: bool) -> None:
    """A few times: a store that refuses them for ever is not asked for ever, and no object of it stays."""
    store = FakeStore()
    store.faults = [Fault(at, ("put",), error=lambda: CorruptError("BadDigest")) for at in range(failures)]
    if ends:
        write(store, leaves(a=torch.ones(3)))
        assert len(store.objects) == 1
    else:
        with pytest.raises(CorruptError):
            write(store, leaves(a=torch.ones(3)))
        assert not store.objects


def test_how_far_it_is_counts_what_left(folder: Path) -> None:
    """By pieces, not by objects: it never goes back, and ends with all of it."""
    told: list[tuple[str, int, int]] = []
    writer = Writer(FileStore(folder), "run")
    what = leaves(**{f"t{n}": torch.zeros(OBJECT_BYTES // 4) for n in range(3)})
    writer.write(what, NAME, Effort(SystemClock()), lambda *words: told.append(words))
    writer.close()
    assert [told[0][0], told[-1][0]] == ["first-byte", "written"]
    assert len(told) > 6
    assert told[-1][1] == told[-1][2] == max(done for _, done, _ in told)
