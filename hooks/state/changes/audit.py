"""Checksums of the state, taken at a boundary, that reveal an edit between boundaries.

Version counters and samples (`change_detector`) miss an edit of some rows through `.data` or `.numpy()`. A comparison
of a copy with live memory misses an edit before the copy. So the reference is always a checksum that the training
thread takes at the boundary, before the next turn runs:

- A slice of the state at each boundary, compared before the next `optimizer.step()`. Slice after slice, the audit
  covers all bytes (`turn`, `look`).
- All of the state at a boundary whose state is copied for a background checkpoint, compared with the copy (`take`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import cpu_count
from typing import NamedTuple

import torch

from ....providers.errors import CheckpointError
from ...checkpoint.format.crc import combine
from ...checkpoint.format.manifest import TensorEntry
from ...ipc.threads import side_by_side
from ..device.cuda_graphs import capturing
from ..device.events import Fence
from ..memory_access import unreadable
from ..state_tensor import StateTensor
from .change_detector import Checksum, ChecksumSource, equal, source

log = logging.getLogger("spotguard")

#: The number of early boundaries, and the share of a step that slices may take: at the early ones, and at all later
#: ones. The shares are a tenth below the 2 % and 0.1 % that docs/explanation/live-state.md promises.
_EARLY, _EARLY_SHARE, _SHARE = 200, 0.018, 0.0009
#: Seconds that `turn` and `look` take at a boundary without a slice: after a step of 0.1 GB, which emptied the caches. After
#: a short step they take 2 µs. The later share pays for them, but at least half of that share stays with the slices.
_CALLS = 9e-6
#: Seconds that an early boundary may always take, however short the step. So a job with steps of 1 ms is audited too.
_EARLY_LEAST = 100e-6
#: Seconds that the smallest slice costs, at early boundaries and at later ones. A smaller share is saved up over
#: several boundaries. After a step of 0.1 GB a slice of 20 µs reads less than 10 KB, and a full round took 13,000
#: turns. With 200 µs a full round took a fraction of them.
_EARLY_SLICE, _SLICE = 20e-6, 200e-6
#: The most bytes of a slice, and of a piece. Between two pieces the audit checks whether it is still wanted.
MOST = 64 * 2**20
#: The cost of one checksum call, as bytes on top of those that it reads: 2 µs at 8 GB/s.
_CALL = 16 * 2**10
#: Bytes per second of one thread, until the rate is measured.
_RATE = 4e9
#: Up to this many bytes, the training thread reads alone.
_ALONE = 8 * 2**20
#: The most threads. Threads beyond the number of memory channels gain nothing.
_THREADS = 8


class Region(NamedTuple):
    """A range of bytes of a source, in the order of its elements."""

    source: ChecksumSource
    start: int
    stop: int


class Reference:
    """Checksums of all audited bytes at one boundary."""

    def __init__(
        self, sums: Sequence[tuple[Region, Checksum]], reached: Fence, found: Callable[[str], str]
    ) -> None:
        self._sums = sums
        self._reached = reached
        self._found = found

    def differs(self, state_tensors: Iterable[StateTensor], pause: Callable[[float], object]) -> str:
        """Return a description of the edit since the boundary; "" if all bytes are unchanged.

        Args:
            state_tensors: the state tensors as they were collected at that boundary, or copies of them.
            pause: waits for a number of seconds; called with 0 before each 64 MiB.

        Raises:
            Exception: the exception of `pause`, which cancels the comparison.
            CheckpointError: a tensor of the boundary is missing among the state tensors.
        """
        return self._compared(self._sums, state_tensors, pause)

    def differs_from_written(
        self,
        entries: Iterable[TensorEntry],
        state_tensors: Iterable[StateTensor],
        pause: Callable[[float], object],
    ) -> str:
        """Do the work of `differs` for bytes written from live memory, by the checksums computed during the write.

        Checksums on a device are of another kind. For these the audit reads live memory once more, so it misses an
        edit that was undone meanwhile.
        """
        written = {entry.name: crc for entry in entries if (crc := _whole_crc(entry)) is not None}
        parts: dict[str, list[tuple[int, int]]] = {}
        rest: list[tuple[Region, Checksum]] = []
        for region, checksum in self._sums:
            if isinstance(checksum, int) and region.source.name in written:
                parts.setdefault(region.source.name, []).append((checksum, region.stop - region.start))
            else:
                rest.append((region, checksum))
        changed = next((name for name, sums in parts.items() if combine(sums) != written[name]), "")
        return self._found(changed) if changed else self._compared(rest, state_tensors, pause)

    def _compared(
        self,
        sums: Iterable[tuple[Region, Checksum]],
        state_tensors: Iterable[StateTensor],
        pause: Callable[[float], object],
    ) -> str:
        self._reached.wait(pause)
        current = {state_tensor.name: state_tensor.tensor for state_tensor in state_tensors}
        made: dict[str, ChecksumSource] = {}
        for region, checksum in sums:
            pause(0)
            name = region.source.name
            if name not in current:
                raise CheckpointError(f"{name} was part of the state at guard.step(), but is no longer")
            if name not in made:
                made = {name: source(name, current[name], region.source.kind)}
            if not equal(made[name].read(region.start, region.stop), checksum):
                return self._found(name)
        return ""


def _whole_crc(entry: TensorEntry) -> int | None:
    """Return the CRC32 of all bytes of a tensor, in the order of its elements.

    None if its chunks are not in that order, or are rounded.
    """
    chunks = sorted(entry.chunks)  # by offsets
    if entry.stored or not all(_runs_on(chunk.sizes, entry.shape) for chunk in chunks):
        return None
    return combine((chunk.crc32, chunk.end - chunk.start) for chunk in chunks)


def _runs_on(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether the elements of a box are contiguous in the whole tensor.

    They are if the box has a part of one dimension, one element of each dimension before it, and all of those after
    it.
    """
    first = next(
        (at for at, (size, full) in enumerate(zip(sizes, shape, strict=True)) if size > 1), len(shape)
    )
    return [*sizes[first + 1 :]] == [*shape[first + 1 :]]


class Audit:
    """The slices and references of one training process.

    The training thread uses it. The thread that saves calls `look` too, while the gate is shut.

    Args:
        now: returns monotonic seconds.
        found: called with a description of the edit and its meaning for earlier checkpoints.
    """

    def __init__(self, now: Callable[[], float], found: Callable[[str], None]) -> None:
        self._now = now
        self._report = found
        self._sources: list[ChecksumSource] = []
        self._total = 0
        self._boundaries = 0
        self._credit = 0.0
        self._rate = _RATE
        #: The start of the next slice: the index of a source, and a byte of that source.
        self._at, self._byte = 0, 0
        #: The slice of the last boundary.
        self._slice: list[tuple[Region, Checksum]] = []
        #: Comparisons on devices. The training thread reads them once the device has computed them.
        self._later: list[tuple[str, torch.Tensor]] = []
        self._fence = Fence()
        #: A description of the edit since the last boundary; "" if the audit found none.
        self._edited = ""
        #: The step count at whose boundary the training thread checksums all state, for a save that the ranks agreed
        #: on. -1 if no step is wanted.
        self.wanted = -1
        #: Set when that reference exists, or will not be taken.
        self.ready = threading.Event()
        #: Checksums of all of the last boundary's state; None if no save asked for them.
        self.reference: Reference | None = None
        #: Seconds that training stood still for the newest reference.
        self.seconds = 0.0

    def follow(self, state_tensors: Iterable[StateTensor], live: Iterable[torch.Tensor]) -> None:
        """Take checksums of these tensors from now on.

        If their total size changed, the early boundaries begin again, so that slices soon cover all bytes.

        Args:
            state_tensors: the state tensors. The audit skips those that are copies of ours.
            live: the tensors that a save reads in place.
        """
        memory = {tensor.untyped_storage().data_ptr() for tensor in live if not unreadable(tensor)}
        self._sources = [
            source(state_tensor.name, state_tensor.tensor)
            for state_tensor in state_tensors
            if state_tensor.tensor.numel()
            and not unreadable(state_tensor.tensor)
            and state_tensor.tensor.untyped_storage().data_ptr() in memory
        ]
        self._fence.follow(each.tensor for each in self._sources)
        self._slice = []
        total = sum(each.nbytes for each in self._sources)
        if total != self._total:
            self._total, self._boundaries, self._at, self._byte = total, 0, 0, 0
        if self._at >= len(self._sources):
            self._at, self._byte = 0, 0

    # --- slices ---

    def turn(self, seconds: float) -> None:
        """Take the next slice if enough time is saved up. Called at a boundary.

        Args:
            seconds: the duration of the step.
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
        # The remaining credit pays for the comparison and for the next slice. It is capped at that.
        self._credit = min(credit - (ended - started), 2 * MOST / self._rate)

    def forget(self) -> None:
        """Drop the slice, the edit and the reference: no save uses the boundary they belong to."""
        self._slice, self._edited, self.reference, self.seconds = [], "", None, 0.0

    def look(self, *, wait: bool = False) -> str:
        """Compare the slice of the last boundary, before the first change after it or while the gate is shut.

        Args:
            wait: wait for a device's comparison, which is otherwise read at a later call. Set it on the thread that
                saves.

        Returns:
            A description of the edit; "" if none was found.
        """
        if not wait and (self._slice or self._later) and self._fence.devices and capturing():
            self._slice = []  # a comparison that is captured is computed at each replay, and never now
            return self._edited
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
            f"{self._edited}; a checkpoint of this attempt may hold such a change already, and a resumed "
            "run would make it twice: make such changes right before guard.step()"
        )
        return self._edited

    def _changed(self, wait: bool) -> str:
        # Only the training thread reads the pending device comparisons: they are on its stream.
        name = "" if wait else self._on_device()
        for region, checksum in self._slice:
            if not region.source.stands():
                continue  # moved or resized: the change detector reports it
            now = region.source.read(region.start, region.stop, on_host=wait)
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
        """Return the name of a tensor whose finished device comparison found an edit; "" if none.

        This does not wait for the device.
        """
        if not self._later or not self._fence.reached():
            return ""
        later, self._later = self._later, []
        return next((name for name, changed in later if bool(changed)), "")

    def _next(self, nbytes: float) -> Iterator[Region]:
        """Yield regions of about `nbytes` bytes from the end of the last slice. No byte appears twice."""
        remaining, ends = int(nbytes), 0
        while remaining > 0 and ends < len(self._sources):
            here, start = self._sources[self._at], self._byte
            stop = min(here.nbytes, start + here.whole_rows(remaining - _CALL))
            if here.stands():
                yield Region(here, start, stop)
            remaining -= stop - start + _CALL
            self._byte = stop
            if stop == here.nbytes:
                self._at, self._byte = (self._at + 1) % len(self._sources), 0
                ends += 1

    # --- references of all state ---

    def want(self, step: int) -> None:
        """Make the training thread take a reference at the boundary of this step, which lies ahead."""
        self.ready.clear()
        self.wanted = step

    def take(self, stop: Callable[[], bool]) -> None:
        """Take the reference of this boundary. On the training thread.

        Args:
            stop: called every 64 MiB; if it returns True, no save wants the reference any more.
        """
        started, self.reference = self._now(), None
        try:
            self.reference = self._whole(stop)
            self.seconds = self._now() - started
        except Exception as error:  # noqa: BLE001 - no memory, as an example: training continues, the save waits for a boundary
            log.warning("spotguard could not checksum the state at its boundary: %s", error)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """End the wait for a reference: none will be taken, and a waiting save continues."""
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

        # Launch checksums of device memory here, after the step's kernels: another thread would compute on another stream.
        alone = self._total <= _ALONE
        for index, region in enumerate(regions):
            if alone or region.source.kind == "sums":
                read(index)
        if not alone:
            host = [index for index, region in enumerate(regions) if region.source.kind == "crc32"]
            side_by_side(read, host, min(_THREADS, cpu_count() or 1))
        if stopped.is_set():
            return None
        reached = Fence()
        reached.cover(self._fence.devices)
        reached.record()
        return Reference([*zip(regions, sums, strict=True)], reached, self._found)
