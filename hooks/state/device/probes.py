"""A few bytes of tensors on devices, which show whether the tensors have changed since the last boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from .events import Event, record
from .host_memory import host_tensor


class DeviceProbes:
    """A few bytes of tensors on devices, as they were at the last boundary.

    The training thread never waits for a device here. It launches a comparison on the device. It reads the verdict at
    a later boundary, once the device has computed it.

    Args:
        owned: tensors that only a hooked optimizer changes.
        others: tensors that any code may change at a boundary, and none between two boundaries.
        record: records an event on a device.
    """

    def __init__(
        self,
        owned: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
        record: Callable[[torch.device, Event | None], Event] = record,
    ) -> None:
        self._record = record
        groups: dict[torch.device, list[torch.Tensor]] = {}
        bytes_of: dict[torch.device, int] = {}
        for tensor in owned:
            groups.setdefault(tensor.device, []).append(_middle(tensor))
            bytes_of[tensor.device] = bytes_of.get(tensor.device, 0) + tensor.itemsize
        for tensor in others:
            groups.setdefault(tensor.device, []).append(_middle(tensor))
        #: The probed bytes of each device, with the optimizers' bytes first; and how many of them are the optimizers'.
        self._probes = [*groups.values()]
        self._owned = [bytes_of.get(device, 0) for device in groups]
        self._seen: list[torch.Tensor] = []
        #: Comparisons that a device has not finished: the event behind each, and the host tensor for its verdict.
        self._verdicts: list[tuple[Event, torch.Tensor]] = []

    def mark(self, stepped: bool) -> bool:
        """Record the bytes as they are now. On the training thread.

        Args:
            stepped: a registered optimizer stepped since the last mark, so nothing is compared.

        Returns:
            Whether bytes that only optimizers change have moved without a step, at this mark or at an earlier one.
        """
        if not self._probes:
            return False
        before, self._seen = self._seen, [torch.cat(probes) for probes in self._probes]
        if before and not stepped:
            for owned, old, new in zip(self._owned, before, self._seen, strict=True):
                if owned:
                    self._compare(old[:owned], new[:owned])
        pending, self._verdicts = self._verdicts, []
        moved = False
        for event, verdict in pending:
            if event.query():
                moved = moved or bool(verdict)
            else:
                self._verdicts.append((event, verdict))
        return moved

    def _compare(self, old: torch.Tensor, new: torch.Tensor) -> None:
        differs = torch.ne(old, new).any()
        verdict = host_tensor(differs)
        verdict.copy_(differs, non_blocking=True)
        self._verdicts.append((self._record(differs.device, None), verdict))

    @property
    def seen(self) -> list[torch.Tensor]:
        """The bytes at the last mark, on their devices."""
        return self._seen

    def differ(self, seen: Sequence[torch.Tensor] | None = None) -> bool:
        """Return whether the bytes differ from those at the last mark, or at the one that returned `seen`.

        The bytes are compared on the host. A comparison on the device is a kernel, and a device that hangs in a kernel of
        training's may not begin another: a save then waited 52 s, until training's kernel ended (seen on an H200). Copies
        wait for the calling thread's stream only. Any thread may call this.
        """
        pairs = zip(self._probes, self._seen if seen is None else seen, strict=False)
        return any(
            not torch.equal(torch.cat([probe.cpu() for probe in probes]), marked.cpu())
            for probes, marked in pairs
        )


def _middle(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the middle element, as an alias. Compared as bytes, a NaN equals itself."""
    middle = sum((size // 2) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = (tensor.storage_offset() + middle) * tensor.itemsize
    alias = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return alias.set_(tensor.untyped_storage(), first, (tensor.itemsize,), (1,))
