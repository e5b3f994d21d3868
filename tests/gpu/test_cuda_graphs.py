"""A script may capture a CUDA graph while a save runs on other threads: neither disturbs the other."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from spotguard.hooks.state.device.events import Fence  # noqa: E402 - after the skip
from spotguard.hooks.state.device.host_memory import host_memory  # noqa: E402 - after the skip
from spotguard.hooks.state.device.streams import CopyStreams  # noqa: E402 - after the skip

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

#: Bytes of each copy.
SIZE = 2**20


def test_copies_events_and_pinned_memory_of_other_threads_do_not_end_a_capture() -> None:
    """Torch's default mode of captures forbids them to every thread that has not left itself out."""
    x = torch.ones(SIZE, device="cuda")
    source = torch.full((SIZE,), 3, dtype=torch.uint8, device="cuda")
    fence = Fence()
    fence.follow([source])
    fence.record()
    torch.cuda.synchronize()
    rounds, over, copies = threading.Semaphore(0), threading.Event(), []

    def save() -> None:
        streams = CopyStreams()
        while not over.is_set():
            memory, pinned = host_memory(SIZE, source.device)
            assert pinned
            with streams.on(source.device):
                memory.copy_(source, non_blocking=True)
            streams.finish()
            fence.wait(lambda seconds: None)
            copies.append(memory)
            rounds.release()

    saver = threading.Thread(target=save)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        saver.start()
        for _ in range(10):
            x += 1
            assert rounds.acquire(timeout=30)
    over.set()
    saver.join()
    graph.replay()
    torch.cuda.synchronize()
    assert bool((x == 11).all())
    assert len(copies) >= 10
    assert all(bool((copy == 3).all()) for copy in copies)
