"""The copy of the state in host memory, from which a background checkpoint is written while training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from ....providers.errors import CheckpointError
from ...commit.cancel_scope import Abandoned, CancelScope
from ...ipc.threads import TaskHandle, ThreadPool
from ...state.device.host_memory import host_memory
from ...state.device.streams import CopyStreams
from ...state.memory_access import available_memory, copyable
from ...state.state_tensor import StateTensor

#: Bytes that are copied between two checks whether the save may go on.
_PIECE = 64 * 2**20
#: Bytes to whose multiples the copies begin: those of a cache line.
_ALIGNED = 64
#: Seconds between two checks whether the memory is there; and for the last block, once nobody wants it any more.
_POLL, _LAST = 0.05, 2.0
#: Host memory in bytes that the copy must leave free.
_LEAVE_FREE = 512 * 2**20


class CopyBlock(NamedTuple):
    """Copies that share memory, by name. The memory stays as long as one of them is used, so they are kept or dropped together."""

    nbytes: int
    copies: dict[str, torch.Tensor]


class Snapshot:
    """The copy of the state in host memory. The saving thread uses it. It keeps its memory and reuses it.

    A standing thread takes the memory: the driver may need seconds for it, and a notice must not wait for them.
    """

    def __init__(self) -> None:
        self._threads = ThreadPool("spotguard-memory")
        self._threads.make()
        self._blocks: list[CopyBlock] = []
        self._streams = CopyStreams()
        self.available = available_memory
        #: The attempt to take memory that began last. Its error is its own: a later one may find room.
        self._attempt: TaskHandle | None = None
        #: The driver has pinned all memory so far.
        self._pinned = True
        self._closed = False

    def prepare(self, state_tensors: tuple[StateTensor, ...]) -> None:
        """Begin to take the memory for copies of a GPU's state. Returns at once.

        The first background checkpoint would take it while training stands still: 1.9 s for 3.6 GB (measured on an H200).
        """
        if self._attempt is not None and not self._attempt.done.is_set():
            return
        missing = self._missing(state_tensors)
        if any(each.tensor.is_cuda for each in missing):
            self._begin(state_tensors, missing)

    def take(self, state_tensors: tuple[StateTensor, ...], scope: CancelScope) -> tuple[StateTensor, ...]:
        """Copy the state tensors as they stand. Return them with their tensors in host memory.

        Raises:
            Abandoned: the save was called off.
            CheckpointError: the host memory cannot hold them.
        """
        scope.check()
        self._end(scope)
        if missing := self._missing(state_tensors):
            errors = self._begin(state_tensors, missing)
            self._end(scope)
            for error in errors:
                raise error
        copies = {name: copy for block in self._blocks for name, copy in block.copies.items()}
        for each in state_tensors:
            with torch.no_grad(), self._streams.on(each.tensor.device):
                for into, part in _pieces(copyable(copies[each.name]), copyable(each.tensor)):
                    scope.check()
                    into.copy_(part, non_blocking=True)
        self._streams.finish()
        return tuple(replace(each, tensor=copies[each.name], still=True) for each in state_tensors)

    def close(self) -> None:
        """End the thread. The saving thread calls this after its last save.

        A thread that is in the driver when the interpreter ends would abort the process.
        """
        self._closed = True
        self._threads.close()
        if self._attempt is not None:
            self._attempt.done.wait(_LAST)

    def _begin(
        self, state_tensors: tuple[StateTensor, ...], missing: list[StateTensor]
    ) -> Sequence[Exception]:
        """Begin an attempt to take memory. Return where its error will be, if it fails."""
        errors: list[Exception] = []
        try:
            self._attempt = self._threads.give(partial(self._hold, state_tensors, missing, errors))
        except RuntimeError as error:
            raise CheckpointError(f"a background checkpoint needs a thread: {error}") from error
        return errors

    def _end(self, scope: CancelScope) -> None:
        while self._attempt is not None and not self._attempt.done.wait(_POLL):
            scope.check()
        scope.check()

    def _hold(
        self, state_tensors: tuple[StateTensor, ...], missing: list[StateTensor], errors: list[Exception]
    ) -> None:
        """Take the memory for the missing copies, and let go of copies of other tensors. On the thread."""
        try:
            there = {each.name for each in state_tensors} - {each.name for each in missing}
            kept = [block for block in self._blocks if block.copies.keys() <= there]
            freed = sum(block.nbytes for block in self._blocks) - sum(block.nbytes for block in kept)
            blocks = [*_grouped(missing)]
            self._check_memory(_size(missing) - freed)
            self._blocks = kept
            for block in blocks:
                if self._closed:
                    raise Abandoned("the guard was closed")
                self._check_memory(_size(block))
                self._blocks.append(self._block(block))
        except Exception as error:  # noqa: BLE001 - the saving thread raises it
            errors.append(error)

    def _missing(self, state_tensors: tuple[StateTensor, ...]) -> list[StateTensor]:
        """Return the tensors without a copy of their form in a block that is kept."""
        wanted = {each.name: (each.tensor.shape, each.tensor.dtype) for each in state_tensors}
        held = {
            name
            for block in self._blocks
            if all(wanted.get(name) == (copy.shape, copy.dtype) for name, copy in block.copies.items())
            for name in block.copies
        }
        return [each for each in state_tensors if each.name not in held]

    def _block(self, state_tensors: Sequence[StateTensor]) -> CopyBlock:
        devices = [each.tensor.device for each in state_tensors if each.tensor.is_cuda]
        nbytes = _size(state_tensors) or 1
        memory, pinned = host_memory(nbytes, devices[0] if devices and self._pinned else None)
        self._pinned = pinned or not devices
        copies, start = {}, 0
        for each in state_tensors:
            copy = memory[start : start + each.tensor.nbytes]
            copies[each.name] = copy.view(each.tensor.dtype).view(each.tensor.shape)
            start += _room(each)
        return CopyBlock(nbytes, copies)

    def _check_memory(self, need: int) -> None:
        if need > 0 and (free := self.available()) < need + _LEAVE_FREE:
            raise CheckpointError(
                f"a background checkpoint needs {need >> 20} MiB of host memory for its copy, but "
                f"{free >> 20} MiB are free: pass --stage with a directory on a local disk, switch "
                "background checkpoints off with --every off, or use a machine with more memory [SG505]"
            )


def _room(state_tensor: StateTensor) -> int:
    return -(-state_tensor.tensor.nbytes // _ALIGNED) * _ALIGNED


def _size(state_tensors: Sequence[StateTensor]) -> int:
    return sum(map(_room, state_tensors))


def _grouped(state_tensors: Sequence[StateTensor]) -> Iterator[list[StateTensor]]:
    """Yield the tensors whose copies share a block."""
    block: list[StateTensor] = []
    size = 0
    for each in state_tensors:
        size += _room(each)
        if block and size > _PIECE:
            yield block
            block, size = [], _room(each)
        block.append(each)
    if block:
        yield block


def _pieces(into: torch.Tensor, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if tensor.nbytes <= _PIECE or not tensor.is_contiguous():
        yield into, tensor
        return
    count = _PIECE // tensor.itemsize
    yield from zip(into.reshape(-1).split(count), tensor.reshape(-1).split(count), strict=True)
