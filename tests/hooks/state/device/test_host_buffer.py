"""Tensors into a frame: the bytes that torch would give, wherever they start and however they lie."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spotguard.hooks.state.device.host_buffer import HostBuffer, as_bytes
from spotguard.hooks.state.device.streams import CopyStreams
from tests.cases import cases

pytestmark = pytest.mark.torch

MIB = 2**20


class Allocated(TorchDispatchMode):
    """Hears of the largest tensor that an operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.largest = max(self.largest, made.nbytes)
        return made


def rounded(source: torch.Tensor) -> bytes:
    return as_bytes(source.to(torch.bfloat16).contiguous()).numpy().tobytes()


def lying(draw: random.Random, how: str) -> torch.Tensor:
    """Some MiB of it, and values that rounding has something to do with."""
    torch.manual_seed(draw.randrange(2**31))
    flat = torch.randn(3, draw.randrange(1, 5), draw.randrange(250_000, 400_000))
    flat[0, 0, :3] = torch.tensor([float("nan"), float("inf"), 1e-42])
    turned = {"whole": flat, "turned": flat.mT, "narrowed": flat[:, :, 5:-7], "steps": flat[:, :, ::3]}
    return {**turned, "reversed": flat.permute(2, 1, 0), "row": flat[0, 0], "one": flat[1, 0, 0]}[how]


@cases("start", [0, 8, 13])
@cases("how", ["whole", "turned", "narrowed", "steps", "reversed", "row", "one"])
def test_moments_are_rounded_on_the_way_as_torch_rounds(how: str, start: int) -> None:
    """Also where a byte before it makes its start odd; and not a byte beside it is touched."""
    source = lying(random.Random(f"{how}-{start}"), how)
    wanted = rounded(source)
    frame = HostBuffer(start + len(wanted) + 1)
    assert frame.copy_in(source, start, torch.bfloat16) == zlib.crc32(wanted)
    assert bytes(frame.view(0, frame.size)) == bytes(start) + wanted + b"\0"


class OnDevice(torch.Tensor):
    """A tensor on the host that says it is on a device, and refuses kernels."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func not in (torch.Tensor.contiguous, torch.Tensor.clone), "a kernel of the device"
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor).clone()
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


@cases("start", [0, 8, 13])
@cases("how", ["channels_last", "turned", "reversed", "part", "one wide"])
def test_permuted_elements_of_a_device_are_put_in_order_on_the_host(how: str, start: int) -> None:
    """A device that is full, or hangs in a kernel, gives neither memory nor a kernel for it."""
    flat = torch.arange(120, dtype=torch.float32).view(2, 3, 4, 5)
    source = {
        "channels_last": lambda: flat.contiguous(memory_format=torch.channels_last),
        "turned": lambda: flat.mT,
        "reversed": lambda: flat.permute(3, 2, 1, 0),
        "part": lambda: flat.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)[:, 1:],
        "one wide": lambda: flat[:1].contiguous(memory_format=torch.channels_last),
    }[how]()
    wanted = as_bytes(source.contiguous()).numpy().tobytes()
    frame = HostBuffer(start + len(wanted) + 1)
    assert frame.copy_in(source.as_subclass(OnDevice), start) == zlib.crc32(wanted)
    assert bytes(frame.view(0, frame.size)) == bytes(start) + wanted + b"\0"


@pytest.mark.parametrize("how", ["whole", "turned", "reversed"])
def test_rounding_takes_a_mib_beside_the_frame(how: str) -> None:
    """Twelve threads with a copy of their whole object each would take as much again as their frames."""
    source = lying(random.Random(how), how)
    assert source.nbytes > 2 * MIB
    frame = HostBuffer(source.numel() * 2)
    allocated = Allocated()  # type: ignore[no-untyped-call]
    with allocated:
        frame.copy_in(source, 0, torch.bfloat16)
    assert 0 < allocated.largest <= MIB


def test_a_side_stream_is_current_on_each_device() -> None:
    """One inside the other: all of them are the thread's until the end."""
    current: list[str] = []

    @contextmanager
    def under(stream: object) -> Iterator[None]:
        current.append(str(stream))
        yield
        current.pop()

    class Stream(str):
        def synchronize(self) -> None:
            raise AssertionError("nobody waits here")

    frame = HostBuffer(8)
    frame._streams = CopyStreams(lambda device: Stream(device), under)
    with frame.aside(torch.device(name) for name in ("cuda:0", "cpu", "cuda:1")):
        assert current == ["cuda:0", "cuda:1"]
    assert current == []


def test_bytes_that_are_not_rounded_are_copied_unchanged() -> None:
    source = torch.arange(6, dtype=torch.float32).view(2, 3)
    frame = HostBuffer(24)
    assert frame.copy_in(source, 0, torch.float32) == frame.copy_in(source, 0)
    assert frame.copy_in(source[:0], 0, torch.bfloat16) == 0
    assert bytes(frame.view(0, 24)) == as_bytes(source).numpy().tobytes()


@pytest.mark.parametrize("touched", [True, False])
def test_a_frame_takes_its_pages_when_it_is_told(touched: bool) -> None:
    """A save's at once, so that none is fresh at the notice; a reading's with the bytes that come."""
    before = resident()
    frame = HostBuffer(32 * MIB, touched=touched)
    assert (resident() - before > 24 * MIB) is touched
    assert bytes(frame.view(0, 8)) == bytes(8)


def resident() -> int:
    """Bytes of this process in memory, counted page by page: proc(5)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))
