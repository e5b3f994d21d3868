"""Read a checkpoint again, every byte of it, and say what is damaged. Nothing is loaded."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...providers.errors import CorruptError, NotFoundError
from ...providers.stores.store import BlobStore
from ..format.manifest import Chunk, ObjectEntry
from .catalog import Whole

#: Objects read side by side, and what each may hold of memory: reading and CRC both let go of the GIL.
_READERS = 4
_PIECE = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not the ones that were written."""

    key: str
    #: "" for the object's header.
    tensor: str
    #: Of the chunk in the tensor.
    offsets: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        what = f"tensor {self.tensor!r} at {list(self.offsets)}" if self.tensor else "header"
        return f"{self.key}: {what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Object:
    key: str
    entry: ObjectEntry
    chunks: list[tuple[str, Chunk]]


def verify(
    store: BlobStore,
    whole: Whole,
    *,
    progress: Callable[[int, int], None] | None = None,
    timeout: float | None = None,
) -> list[Damage]:
    """All damage in a checkpoint, objects that it refers to included; empty where each CRC agrees.

    Args:
        store: where it is.
        whole: from the catalog.
        progress: called with (bytes read, bytes in all) after each object.
        timeout: of each request.
    """
    objects = _objects(whole)
    total = sum(each.entry.size for each in objects)
    done = 0
    damages: list[Damage] = []
    with ThreadPoolExecutor(_READERS, thread_name_prefix="spotguard-verify") as pool:
        reports = pool.map(lambda each: list(_check(store, each, timeout)), objects)
        for each, found in zip(objects, reports, strict=True):
            damages += found
            done += each.entry.size
            if progress is not None:
                progress(done, total)
    return damages


def _objects(whole: Whole) -> list[_Object]:
    objects: dict[str, _Object] = {}
    for manifest in whole.manifests:
        here = []
        for index, entry in enumerate(manifest.objects):
            key = manifest.object_key(index)
            here.append(objects.setdefault(key, _Object(key, entry, [])))
        for tensor in manifest.tensors:
            for chunk in tensor.chunks:
                here[chunk.object].chunks.append((tensor.name, chunk))
    return list(objects.values())


def _check(store: BlobStore, each: _Object, timeout: float | None) -> Iterator[Damage]:
    buffer = memoryview(bytearray(min(_PIECE, each.entry.size)))
    try:
        if _crc32(store, each.key, 0, each.entry.header, buffer, timeout) != each.entry.header_crc32:
            yield Damage(each.key, "", (), "CRC32 differs")
        for tensor, chunk in each.chunks:
            if _crc32(store, each.key, chunk.start, chunk.end, buffer, timeout) != chunk.crc32:
                yield Damage(each.key, tensor, chunk.offsets, "CRC32 differs")
    except (NotFoundError, CorruptError) as error:
        yield Damage(each.key, "", (), str(error))


def _crc32(
    store: BlobStore, key: str, start: int, end: int, buffer: memoryview, timeout: float | None
) -> int:
    crc = 0
    for at in range(start, end, _PIECE):
        view = buffer[: min(_PIECE, end - at)]
        store.read_into(key, at, view, timeout=timeout)
        crc = zlib.crc32(view, crc)
    return crc
