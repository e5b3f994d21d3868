"""Checksums of the state, taken at a boundary, by which an edit between boundaries is found.

Version counters and samples (`change_detector`) miss an edit of some rows through `.data` or `.numpy()`. A comparison of a copy
with live memory misses one that came before the copy. So the reference is always a checksum taken at the boundary, on
the training thread, before the next turn runs:

- a slice of the state at each boundary, compared before the next `optimizer.step()`; slice after slice, all bytes come
  round (`turn`, `look`);
- all of it at a boundary whose state is copied for a background checkpoint, compared with the copy (`take`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import NamedTuple

import torch

from ....providers.errors import CheckpointError
from ...checkpoint.format.crc import combine
from ...checkpoint.format.manifest import TensorEntry
from ..device import Fence
from ..memory_access import gap
from ..tensor_item import StateTensor
from .checksums import Checksum, ChecksumSource, equal, source

log = logging.getLogger("spotguard")

#: Share of a step that slices may take: of the first boundaries, and of all later ones. A tenth below the 2 % and 0.1 %
#: that docs/concepts.md promises.
_EARLY, _EARLY_SHARE, _SHARE = 200, 0.018, 0.0009
#: Seconds that `turn` and `look` take at a boundary of which no slice is taken, behind a step of 0.1 GB that emptied the
#: caches (2 µs behind a short step). They come off the later share, of which half is left to slices all the same.
_CALLS = 9e-6
#: Seconds that one of the first boundaries may take whatever the step's length: a job of steps of 1 ms is looked at too.
_EARLY_LEAST = 100e-6
#: Seconds that the smallest slice costs, of the first boundaries and of later ones. Less is saved up over boundaries: behind
#: a step of 0.1 GB a slice of 20 µs reads no 10 KB, and all came round in 13,000 turns; at 200 µs in a fraction of them.
_EARLY_SLICE, _SLICE = 20e-6, 200e-6
#: Bytes of a slice, and of a piece: as many are read between two looks at whether the audit is still wanted.
MOST = 64 * 2**20
#: Bytes that a call of the checksum costs beyond those that it reads: 2 µs at 8 GB/s.
_CALL = 16 * 2**10
#: Bytes a second of one thread, until it is measured.
_RATE = 4e9
#: Fewer bytes than these are read by the training thread alone.
_ALONE = 8 * 2**20
#: More threads than memory has channels gain nothing.
_THREADS = 8


class Region(NamedTuple):
    """Some bytes of a source, in the order of its elements."""

    source: ChecksumSource
    start: int
    stop: int


class Reference:
    """Checksums of all that is audited, of one boundary."""

    def __init__(
        self, sums: Sequence[tuple[Region, Checksum]], reached: Fence, found: Callable[[str], str]
    ) -> None:
        self._sums = sums
        self._reached = reached
        self._found = found

    def differs(self, leaves: Iterable[StateTensor], pause: Callable[[float], object]) -> str:
        """What was edited since the boundary; "" where all bytes are as they were.

        Args:
            leaves: the tensors as they were collected at that boundary, or copies of them.
            pause: waits for so many seconds; called with 0 before each 64 MiB.

        Raises:
            Exception: what `pause` raises, to call it off.
            CheckpointError: a tensor of the boundary is missing among them.
        """
        return self._compared(self._sums, leaves, pause)

    def differs_from_written(
        self, entries: Iterable[TensorEntry], leaves: Iterable[StateTensor], pause: Callable[[float], object]
    ) -> str:
        """As `differs`, of what was written from live memory: by the checksums that were taken on the way. A device's are of
        another kind: there live memory is looked at once more, and an edit that was undone meanwhile is not seen."""
        written = {entry.name: crc for entry in entries if (crc := _whole_crc(entry)) is not None}
        parts: dict[str, list[tuple[int, int]]] = {}
        rest: list[tuple[Region, Checksum]] = []
        for region, checksum in self._sums:
            if isinstance(checksum, int) and region.source.name in written:
                parts.setdefault(region.source.name, []).append((checksum, region.stop - region.start))
            else:
                rest.append((region, checksum))
        changed = next((name for name, sums in parts.items() if combine(sums) != written[name]), "")
        return self._found(changed) if changed else self._compared(rest, leaves, pause)

    def _compared(
        self,
        sums: Iterable[tuple[Region, Checksum]],
        leaves: Iterable[StateTensor],
        pause: Callable[[float], object],
    ) -> str:
        self._reached.wait(pause)
        held = {leaf.name: leaf.tensor for leaf in leaves}
        made: dict[str, ChecksumSource] = {}
        for region, checksum in sums:
            pause(0)
            name = region.source.name
            if name not in held:
                raise CheckpointError(f"{name} was part of the state at guard.step() and is not any more")
            if name not in made:
                made = {name: source(name, held[name], region.source.kind)}
            if not equal(made[name].read(region.start, region.stop), checksum):
                return self._found(name)
        return ""


def _whole_crc(entry: TensorEntry) -> int | None:
    """Of all bytes of a tensor, in the order of its elements; None where its chunks do not lie so, or are rounded."""
    chunks = sorted(entry.chunks)  # by their offsets
    if entry.stored or not all(_runs_on(chunk.sizes, entry.shape) for chunk in chunks):
        return None
    return combine((chunk.crc32, chunk.end - chunk.start) for chunk in chunks)


def _runs_on(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the elements of a box follow each other in the whole: a part of one dimension, one of each before it, all of
    those behind."""
    some = next(
        (at for at, (size, full) in enumerate(zip(sizes, shape, strict=True)) if size > 1), len(shape)
    )
    return [*sizes[some + 1 :]] == [*shape[some + 1 :]]


class Audit:
    """Used on the training thread; `look` also by the one that saves, while the gate is shut.

    Args:
        now: monotonic seconds.
        found: called with what was edited, and what that means for earlier checkpoints.
    """

    def __init__(self, now: Callable[[], float], found: Callable[[str], None]) -> None:
        self._now = now
        self._report = found
        self._sources: list[ChecksumSource] = []
        self._total = 0
        self._boundaries = 0
        self._credit = 0.0
        self._rate = _RATE
        #: Where the next slice begins: a source, and a byte of it.
        self._at, self._byte = 0, 0
        #: The slice of the last boundary.
        self._slice: list[tuple[Region, Checksum]] = []
        #: Comparisons on devices, to be read when the device has made them.
        self._later: list[tuple[str, torch.Tensor]] = []
        self._fence = Fence()
        self._threads: ThreadPoolExecutor | None = None
        #: What of the last boundary's state was edited since.
        self._edited = ""
        #: Completed steps at whose boundary all is to be checksummed, for a save that ranks agreed on; -1: none.
        self.wanted = -1
        #: Set when that reference is there, or will not be.
        self.ready = threading.Event()
        #: Checksums of all of the last boundary's state; None: nobody asked for them.
        self.reference: Reference | None = None
        #: For which training stood still for the newest reference.
        self.seconds = 0.0

    def follow(self, leaves: Iterable[StateTensor], live: Iterable[torch.Tensor]) -> None:
        """Take checksums of these from now on. More or others than before: all bytes come round faster.

        Args:
            leaves: of which those are taken that are no copies of ours.
            live: the tensors that are read where they lie.
        """
        memory = {tensor.untyped_storage().data_ptr() for tensor in live if not gap(tensor)}
        self._sources = [
            source(leaf.name, leaf.tensor)
            for leaf in leaves
            if leaf.tensor.numel()
            and not gap(leaf.tensor)
            and leaf.tensor.untyped_storage().data_ptr() in memory
        ]
        self._fence.follow(each.tensor for each in self._sources)
        self._slice = []
        total = sum(each.nbytes for each in self._sources)
        if total != self._total:
            self._total, self._boundaries, self._at, self._byte = total, 0, 0, 0
        if self._at >= len(self._sources):
            self._at, self._byte = 0, 0

    def close(self) -> None:
        """Let the threads end."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    # --- slices ---

    def turn(self, seconds: float) -> None:
        """At a boundary: take the next slice, if the time for one is saved up.

        Args:
            seconds: that the step took.
        """
        started = self._now()
        self.forget()
        if self._boundaries < _EARLY:
            self._boundaries += 1
            least, share = _EARLY_SLICE, max(_EARLY_SHARE * seconds, _EARLY_LEAST)
        else:
            least, share = _SLICE, max(_SHARE * seconds - _CALLS, _SHARE * seconds / 2)
        credit = self._credit = self._credit + share
        if credit < least:
            return
        began = self._now()
        regions = [*self._next(min(credit * self._rate / 2, MOST))]
        self._slice = [(each, each.source.read(each.start, each.stop)) for each in regions]
        ended = self._now()
        if ended > began and regions:
            rate = sum(each.stop - each.start + _CALL for each in regions) / (ended - began)
            self._rate += 0.3 * (min(max(rate, 1e8), 1e11) - self._rate)
        # What is left pays for the comparison, and for the next slice; for no more than that.
        self._credit = min(credit - (ended - started), 2 * MOST / self._rate)

    def forget(self) -> None:
        """What was taken is of no boundary that anybody saves."""
        self._slice, self._edited, self.reference, self.seconds = [], "", None, 0.0

    def look(self, *, wait: bool = False) -> str:
        """Compare the slice of the last boundary: before the first change after it, or while the gate is shut. Returns what
        was edited; "" where nothing was seen.

        Args:
            wait: for what a device compares, which is else read at a later look. On the thread that saves.
        """
        if (self._slice or self._later) and not self._edited:
            started = self._now()
            name = self._changed(wait)
            self._credit -= self._now() - started
            if name:
                return self._found(name)
        return self._edited

    def _found(self, name: str) -> str:
        self._edited = f"{name} was changed in place after guard.step() and before optimizer.step()"
        self._report(
            f"{self._edited}; a checkpoint of this attempt may hold such a change already, and a resumed run would make it "
            "twice: make it right before guard.step()"
        )
        return self._edited

    def _changed(self, wait: bool) -> str:
        # Those of the training thread are its own to read: they are on its stream.
        name = "" if wait else self._on_device()
        for region, checksum in self._slice:
            if not region.source.stands():
                continue  # moved or resized: the witness says so
            now = region.source.read(region.start, region.stop)
            if wait:
                if not equal(now, checksum):
                    return region.source.name
            elif isinstance(now, torch.Tensor) and isinstance(checksum, torch.Tensor):
                self._later.append((region.source.name, (now != checksum).any()))
            elif now != checksum:
                return region.source.name
        if self._later and not wait:
            self._fence.record()
        return name

    def _on_device(self) -> str:
        """Of comparisons that the device has made by now. Nothing waits for it."""
        if not self._later or not self._fence.reached():
            return ""
        later, self._later = self._later, []
        return next((name for name, changed in later if bool(changed)), "")

    def _next(self, nbytes: float) -> Iterator[Region]:
        """Regions of about so many bytes, from where the last slice ended, each byte once at most."""
        left, ends = int(nbytes), 0
        while left > 0 and ends < len(self._sources):
            here, start = self._sources[self._at], self._byte
            stop = min(here.nbytes, start + here.whole_rows(left - _CALL))
            if here.stands():
                yield Region(here, start, stop)
            left -= stop - start + _CALL
            self._byte = stop
            if stop == here.nbytes:
                self._at, self._byte = (self._at + 1) % len(self._sources), 0
                ends += 1

    # --- all of it ---

    def want(self, step: int) -> None:
        """Have the training thread take a reference at the boundary of this step, which it has not come to."""
        self.ready.clear()
        self.wanted = step

    def take(self, stop: Callable[[], bool]) -> None:
        """Take the reference of this boundary, unless `stop`, which is asked every 64 MiB, says that nobody wants it any
        more. On the training thread."""
        started, self.reference = self._now(), None
        try:
            self.reference = self._whole(stop)
            self.seconds = self._now() - started
        except Exception as error:  # noqa: BLE001 - no thread, no memory: training goes on, the save waits for a boundary
            log.warning("the state could not be checksummed at its boundary: %s", error)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """No reference is taken any more: who waits for it goes on."""
        self.wanted = -1
        self.ready.set()

    def _whole(self, stop: Callable[[], bool]) -> Reference | None:
        regions = [
            Region(each, start, min(each.nbytes, start + each.whole_rows(MOST)))
            for each in self._sources
            if each.stands()
            for start in range(0, each.nbytes, each.whole_rows(MOST))
        ]
        sums: list[Checksum] = [0] * len(regions)
        stopped = threading.Event()

        def read(index: int) -> None:
            region = regions[index]
            if stopped.is_set() or stop():
                stopped.set()
            else:
                sums[index] = region.source.read(region.start, region.stop)

        # A device's are launched here, behind the step's kernels: another thread computes on another stream.
        alone = self._total <= _ALONE
        for index, region in enumerate(regions):
            if alone or region.source.kind == "sums":
                read(index)
        if not alone:
            if self._threads is None:
                threads = min(_THREADS, cpu_count() or 1)
                self._threads = ThreadPoolExecutor(threads, "spotguard-audit")
            host = [index for index, region in enumerate(regions) if region.source.kind == "crc32"]
            for _ in self._threads.map(read, host):
                pass
        if stopped.is_set():
            return None
        reached = Fence()
        reached.cover(self._fence.devices)
        reached.record()
        return Reference([*zip(regions, sums, strict=True)], reached, self._found)
