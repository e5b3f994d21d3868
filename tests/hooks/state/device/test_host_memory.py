"""Memory for the copies of a state: touched, pinned on the right device, unpinned once, and not there in a forked child."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from spotguard.hooks.state.device import host_memory as module
from spotguard.hooks.state.device.host_memory import host_memory

pytestmark = pytest.mark.torch

SECOND = torch.device("cuda", 1)
SIZE = 2**20


class Runtime:
    """The CUDA runtime's pins, with the current device of each call."""

    def __init__(self, patch: pytest.MonkeyPatch, refuse: int = 0) -> None:
        self.calls: list[tuple[str, object, int]] = []
        self._refuse = refuse
        self._current: object = torch.device("cuda", 0)
        patch.setattr(torch.cuda, "cudart", lambda: self)
        patch.setattr(torch.cuda, "device", self.device)
        patch.setattr(module, "work_beside_captures", lambda: None)

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        before, self._current = self._current, device
        yield
        self._current = before

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 1  # portable: for all devices
        self.calls.append(("pin", self._current, nbytes))
        return self._refuse

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unpin", self._current, 0))
        return 0


def test_memory_is_pinned_by_the_device_of_its_tensors_until_the_last_of_them_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pinned by another device, it would give that one a context of this process: one for each rank, on the first GPU."""
    runtime = Runtime(monkeypatch)
    memory, pinned = host_memory(SIZE, SECOND)
    view = memory[64:128].view(torch.float32)
    assert (pinned, runtime.calls) == (True, [("pin", SECOND, SIZE)])
    del memory
    assert len(runtime.calls) == 1
    view.fill_(1.0)
    del view
    assert runtime.calls[1:] == [("unpin", SECOND, 0)]


def test_a_refused_pin_leaves_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch, refuse=2)
    memory, pinned = host_memory(SIZE, SECOND)
    assert (pinned, int(memory.sum())) == (False, 0)
    del memory
    assert [call for call, _, _ in runtime.calls] == ["pin"]


def test_a_forked_child_unpins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no CUDA, and the pins are its parent's."""
    runtime = Runtime(monkeypatch)
    memory, _ = host_memory(SIZE, SECOND)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del memory
    assert [call for call, _, _ in runtime.calls] == ["pin"]


def test_a_forked_child_does_not_have_the_memory() -> None:
    """It would have a copy of each page that this process writes to afterwards, and of each pinned page at once."""
    memory, pinned = host_memory(SIZE, None)
    assert not pinned
    mapping = f"{memory.data_ptr():x}-"
    assert _maps(mapping)
    child = os.fork()
    if not child:
        os._exit(int(_maps(mapping)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _maps(beginning: str) -> bool:
    with open("/proc/self/maps") as maps:
        return any(line.startswith(beginning) for line in maps)
