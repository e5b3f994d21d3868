"""Manifests of large jobs: read and checked as a commit does, and planned from as a restoring rank does.

2,169 items a rank is about a model of 70 billion parameters with Adam. Each tensor is split among all ranks along its first
dimension, as FSDP does, so 1,024 ranks make two million chunks. Everything runs on a thread beside the main thread, where the
collector goes on, as in a job that trains. The memory is the most that it takes beyond the bytes of the manifests.

Beside it, up to 1,024 ranks: the global plan that `torch.distributed.checkpoint` makes on its coordinator from the same, with its
unpickling of what ranks send; and the metadata that each of its ranks reads and plans from. `python -m benchmarks.growth` draws the
newest full run.
"""

from __future__ import annotations

import gc
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import cast

from spotguard.hooks.checkpoint.format.boxes import Box
from spotguard.hooks.checkpoint.format.codec import decode_manifest, encode_manifest, open_file
from spotguard.hooks.checkpoint.format.coverage import Coverage, coverage
from spotguard.hooks.checkpoint.format.keys import (
    INDEX,
    MARKER,
    checkpoint_prefix,
    manifest_name,
    object_name,
)
from spotguard.hooks.checkpoint.format.manifest import (
    Chunk,
    ObjectEntry,
    RankManifest,
    TensorEntry,
    private_name,
)
from spotguard.hooks.checkpoint.format.packing import PackedCache
from spotguard.hooks.checkpoint.index import IndexBuilder, decode_index
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.own_manifest import queue_manifest
from spotguard.hooks.commit.publish import publish_together
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import NotFoundError
from spotguard.providers.stores.base import BlobStore, ObjectInfo

from .children import child, lines
from .dcp import WIDTH as _WIDTH
from .dcp import Dcp
from .rows import Row
from .saving import resident
from .scale import Scale
from .timing import seconds

_HEADER = 4096
_MOMENTS = ("", "exp_avg", "exp_avg_sq")


#: Ranks; how often it is measured; and the figures: seconds to read and check, to commit with the fetching, and to plan.
_WORLDS = ((128, 5, 0.5, 1.0, 1.0), (1024, 3, 2.0, 6.0, 3.0), (4096, 1, 8.0, 24.0, 12.0))
#: Seconds until the far store answers, and bytes a second of the link to it: 1 Gbit/s.
_LATENCY, _LINK = 0.03, 125e6
#: Keys of one answer to a listing, and bytes of each in it.
_PAGE, _LISTED = 1000, 300
#: MiB that a commit, or a restore, may take.
_MEMORY = 256.0
#: Most ranks for which DCP is measured: of 1,024 it takes two minutes and 6 GB.
_DCP_MOST = 1024


def measure(scale: Scale) -> Iterator[Row]:
    tensors, worlds = scale.of((2169, _WORLDS), (20, ((17, 1, 0.5, 1.0, 1.0),)))
    for world, times, check, whole, plan in worlds:
        files = [(f"rank {rank}", _manifest(rank, world, tensors)) for rank in range(world)]
        what = f"{world:,} ranks × {tensors:,} tensors"
        yield Row(f"manifests of {what}: bytes of one", "kB", (len(files[0][1]) / 1e3,))
        peer = _by_dcp(scale, world, tensors) if world <= _DCP_MOST else None
        checked = [_on_a_thread(lambda: _measured(lambda: _commit(files))) for _ in range(times)]  # noqa: B023
        yield Row(
            f"manifests of {what}: read and checked",
            "s",
            tuple(seconds for seconds, _ in checked),
            figure=check,
            peer=peer.plan if peer else None,
            peer_name="DCP's global plan",
        )
        yield Row(
            f"manifests of {what}: memory of that", "MiB", tuple(mib for _, mib in checked), figure=_MEMORY
        )
        requests, took, phases = _committed(files, world)
        yield Row(
            f"manifests of {what}: committed, the store 30 ms away at 1 Gbit/s", "s", (took,), figure=whole
        )
        for phase, share in phases.items():
            yield Row(f"manifests of {what}:   of that, {phase}", "s", (share,))
        yield Row(f"manifests of {what}: requests of that", "requests", (float(requests),))
        joined = _index(files)
        yield Row(
            f"manifests of {what}: what a machine reads to restore",
            "MB",
            (len(joined) / 1e6,),
            peer=peer.metadata / 1e6 if peer else None,
            peer_name="DCP's .metadata",
        )
        planned = [
            _on_a_thread(lambda: _measured(lambda: _plan_of(joined, files)))  # noqa: B023
            for _ in range(times)
        ]
        yield Row(
            f"manifests of {what}: its index read and checked, and one rank's reads planned",
            "s",
            tuple(seconds for seconds, _ in planned),
            figure=plan,
            peer=peer.read if peer else None,
            peer_name="DCP's metadata and read items",
        )


def _committed(files: list[tuple[str, bytes]], world: int) -> tuple[int, float, dict[str, float]]:
    """Requests and seconds of the commit by the rank that comes last: its manifest, all others', the check, marker and index.

    The seconds of its phases are as the store sees them: what is read while others are fetched counts as fetching.
    """
    manifests = [decode_manifest(data, key) for key, data in files]
    last = manifests[-1]
    prefix = checkpoint_prefix(last.run_id, last.checkpoint)
    store = _FarStore(
        {prefix + manifest_name(rank, world): data for rank, (_, data) in enumerate(files[:-1])},
        {each.object_key(at): entry.size for each in manifests for at, entry in enumerate(each.objects)},
    )
    clock = SystemClock()
    with closing(ShardWriter(cast(BlobStore, store), last.run_id, last.rank, world)) as writer:
        writer.uploads.warm(0)
        began = time.monotonic()
        scope = CancelScope(clock, None)
        queue = writer.requests(scope)
        published = publish_together(queue, queue_manifest(queue, lambda: last), scope, clock)
        took = time.monotonic() - began
    assert published.marked
    own, marker, index = (
        next(times for key, times in store.puts.items() if key.endswith(end))
        for end in (manifest_name(world - 1, world), MARKER, INDEX)
    )
    phases = {
        "until the last manifest is there": store.last_get - own[1],
        "from there to the marker: the check": marker[0] - store.last_get,
        "the marker": marker[1] - marker[0],
        "the index": index[1] - marker[1],
    }
    return store.requests, took, phases


class _FarStore:
    """A store that answers after `_LATENCY`, over one link for all answers."""

    url = "far://store"
    parallel = 16

    def __init__(self, objects: dict[str, bytes], sizes: dict[str, int]) -> None:
        self._objects = objects
        #: Sizes of the tensors' objects, whose bytes nobody asks for.
        self._sizes = sizes
        self._lock = threading.Lock()
        self._free = 0.0
        self.requests = 0
        #: When each put began and ended, and the last get ended, in monotonic seconds.
        self.puts: dict[str, tuple[float, float]] = {}
        self.last_get = 0.0

    def warm(self, *, timeout: float | None = None) -> None:
        pass

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        data = self._objects.get(key)
        self._travel(len(data or b""))
        self.last_get = time.monotonic()
        if data is None:
            raise NotFoundError(key)
        return data

    def put(self, key: str, data: memoryview, **_: object) -> None:
        began = time.monotonic()
        self._travel(len(data))
        self._objects[key] = bytes(data)
        self.puts[key] = began, time.monotonic()

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        there = self._sizes | {key: len(data) for key, data in self._objects.items()}
        found = sorted((key, size) for key, size in there.items() if key.startswith(prefix))
        for at in range(0, max(1, len(found)), _PAGE):
            page = found[at : at + _PAGE]
            self._travel(_LISTED * len(page))
            yield from (ObjectInfo(key, size, 0.0) for key, size in page)

    def _travel(self, nbytes: int) -> None:
        now = time.monotonic()
        with self._lock:
            self.requests += 1
            self._free = max(self._free, now + _LATENCY) + nbytes / _LINK
            there = self._free
        time.sleep(there - now)


def _measured(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the call, and MiB of memory that it takes at its worst."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew: proc(5)
    before = resident("VmRSS")
    took = seconds(call)
    return took, max(0, resident("VmHWM") - before) / 2**20


def _commit(files: list[tuple[str, bytes]]) -> Coverage:
    cache = PackedCache()
    return coverage([decode_manifest(data, key, cache) for key, data in files])


def _index(files: list[tuple[str, bytes]]) -> bytes:
    builder = IndexBuilder()
    for key, data in files:
        builder.add(open_file(data, key, "manifest"), len(data))
    return builder.encode()


def _plan_of(index: bytes, files: list[tuple[str, bytes]]) -> int:
    """The chunks that one rank in the middle reads, as many ranks as saved."""
    sizes = {rank: len(data) for rank, (_, data) in enumerate(files)}
    whole = coverage(decode_index(index, "index", sizes))
    wanted = Box((len(files) // 2 * _WIDTH, 0), (_WIDTH, _WIDTH))
    tensors = (tensor for tensor in whole.tensors.values() if len(tensor.shape) == len(wanted.sizes))
    return sum(len([*tensor.meeting(wanted)]) for tensor in tensors)


def _by_dcp(scale: Scale, world: int, tensors: int) -> Dcp:
    """In a process of its own: it takes gigabytes, and here they would stay."""
    with child(["-m", "benchmarks.dcp", str(world), str(tensors)], cwd=scale.folder, answers=True) as process:
        (line,) = lines(process)
    return Dcp(**json.loads(line))


def _on_a_thread(call: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def _manifest(rank: int, world: int, tensors: int) -> bytes:
    """One rank's manifest: its 1/world of every tensor, 64 rows of 64 float32 each, in objects of 100 tensors.

    A third are weights and the rest moments, which the optimizer's tree names; the generator's state is the rank's own.
    """
    size, per_object = _WIDTH * _WIDTH * 4, 100
    names = [
        f"model/layers.{i // 3}.weight"
        if i % 3 == 0
        else f"optimizer/state/model/layers.{i // 3}.weight/{_MOMENTS[i % 3]}"
        for i in range(tensors)
    ]
    entries = [
        TensorEntry(
            name,
            "float32",
            (world * _WIDTH, _WIDTH),
            (
                Chunk(
                    (rank * _WIDTH, 0),
                    (_WIDTH, _WIDTH),
                    i // per_object,
                    _HEADER + i % per_object * size,
                    _HEADER + (i % per_object + 1) * size,
                    zlib.crc32(b"%d %d" % (rank, i)),
                ),
            ),
        )
        for i, name in enumerate(names)
    ]
    objects = [
        ObjectEntry(object_name(rank, world, i), _HEADER + per_object * size, _HEADER, 1)
        for i in range(-(-tensors // per_object))
    ]
    own = private_name(rank, "rng#0")
    last = Chunk((0,), (5056,), len(objects), 80, 80 + 5056, rank)
    entries.append(TensorEntry(own, "uint8", (5056,), (last,)))
    objects.append(ObjectEntry(object_name(rank, world, len(objects)), 80 + 5056, 80, 1))
    state = {
        "model": {name: {"$": "tensor", "name": name} for name in names[::3]},
        "optimizer": {
            weight: {
                moment: {"$": "tensor", "name": f"optimizer/state/{weight}/{moment}"}
                for moment in _MOMENTS[1:]
            }
            for weight in names[::3]
        },
        "rng": {"torch": {"$": "tensor", "name": own}},
    }
    return encode_manifest(
        RankManifest(
            "bench", 1, 0, 0, rank, world, objects=tuple(objects), tensors=tuple(entries), state=state
        )
    )
