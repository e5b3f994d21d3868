"""Files that anybody may have written to a store: they take little memory, end no job, and print nothing that a terminal obeys."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import tracemalloc
import zlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.codec import (
    decode_attempt,
    decode_manifest,
    decode_marker,
    encode_attempt,
    encode_manifest,
    encode_marker,
)
from spotguard.hooks.checkpoint.format.entries import record
from spotguard.hooks.checkpoint.format.manifest import AttemptRecord, CommitMarker, RankManifest
from spotguard.hooks.checkpoint.format.packing import pack, pack_numbers
from spotguard.providers.errors import CheckpointError
from tests.cases import cases
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore

MIB = 2**20
#: A sequence that clears a screen, a bell, a mark that turns the order around, half of a pair, and a line and a tab that stay.
OBEYED, SHOWN = "a\x1b[2J\x07\u202eb\ud800\n\tc", "a [2J  b \n\tc"


def a_manifest() -> RankManifest:
    return Save(world=2).write(FakeStore(), marker=False)[0]


def sealed(value: Any, kind: str) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return b'{"crc32":%d,"%s":%b}\n' % (zlib.crc32(body), kind.encode(), body)


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def fields(data: bytes, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)[kind]
    return found


@cache
def equal_chunks(count: int, dims: int = 1) -> dict[str, str]:
    """The columns of a tensor in as many empty chunks."""
    zeros = packed(bytes(count * 4)), packed(bytes(count * dims * 8))
    return {
        "forms": pack([["a"], ["int8"], [""], [[1] * dims]]),
        "counts": pack_numbers("I", [count]),
        "starts": pack_numbers("q", [96, *[0] * (min(count, 2**18) - 1)]),
        "offsets": zeros[1], "sizes": zeros[1], "objects": zeros[0], "crc32": zeros[0],
    }  # fmt: skip


BOMBS: dict[str, Callable[[], dict[str, str]]] = {
    "lists": lambda: {"forms": packed(b"[" + b"[]," * 2**23 + b"[]]")},
    "objects": lambda: {"forms": packed(b"[" + b'{"a":0},' * 2**22 + b"[]]")},
    "texts": lambda: {"forms": packed(b"[" + b'"a",' * 2**23 + b"[]]")},
    "wide letters": lambda: {"forms": packed(b'["' + b"a" * 2**26 + b'\\ud83d\\ude00"]')},
    "chunks": lambda: equal_chunks(2**20, 8),
    "counts": lambda: {"counts": packed(bytes(2**27))},
    "sizes": lambda: {"sizes": packed(bytes(2**27))},
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_packed_text_that_takes_much_memory_is_refused_before_it_does(
    bomb: Callable[[], dict[str, str]],
) -> None:
    """A gigabyte of zeros is a megabyte of text, and a list of empty lists takes twenty times its JSON."""
    body = fields(encode_manifest(a_manifest()), "manifest")
    body["tensors"][0] |= bomb()
    data = sealed(body, "manifest")
    assert len(data) < 512 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"take too much memory|has more than"):
            decode_manifest(data, "k")
        assert tracemalloc.get_traced_memory()[1] < 256 * MIB
    finally:
        tracemalloc.stop()


def test_chunks_that_are_all_equal_are_read() -> None:
    """No limit of the compression refuses them: they are a thousandth of their size."""
    manifest = a_manifest()
    body = fields(encode_manifest(manifest), "manifest")
    start = manifest.objects[0].header
    body["tensors"] = [equal_chunks(2**18) | {"starts": pack_numbers("q", [start, *[0] * (2**18 - 1)])}]
    data = sealed(body, "manifest")
    assert len(data) < 64 * 1024
    assert len(decode_manifest(data, "k").tensors[0].chunks) == 2**18


def test_texts_for_people_keep_nothing_that_a_terminal_obeys() -> None:
    texts = {"text": OBEYED, OBEYED: [OBEYED, 1, None]}
    clean = {"text": SHOWN, SHOWN.replace("\n", " ").replace("\t", " "): [SHOWN, 1, None]}
    body = fields(encode_manifest(a_manifest()), "manifest")
    body |= {"history": texts, "environment": texts, "suspect": OBEYED, "left_out": [OBEYED]}
    read = decode_manifest(sealed(body, "manifest"), "k")
    assert (read.history, read.environment, read.suspect) == (clean, clean, SHOWN)
    assert read.left_out == (SHOWN.replace("\n", " ").replace("\t", " "),)
    attempt = fields(encode_attempt(AttemptRecord("run", 3)), "attempt") | {"info": texts}
    assert decode_attempt(sealed(attempt, "attempt"), "k").info == clean
    assert record(json.dumps(texts).encode()) == clean


@cases(
    "kind, decode", [("manifest", decode_manifest), ("commit", decode_marker), ("attempt", decode_attempt)]
)
def test_a_run_id_that_no_run_has_is_refused(kind: str, decode: Callable[[bytes, str], Any]) -> None:
    manifest = a_manifest()
    files = {
        "manifest": encode_manifest(manifest),
        "commit": encode_marker(CommitMarker.of([manifest], 1.0)),
        "attempt": encode_attempt(AttemptRecord("run", 3)),
    }
    body = fields(files[kind], kind) | {"run_id": "run\x1b[2J"}
    with pytest.raises(CheckpointError) as caught:
        decode(sealed(body, kind), "k")
    assert "run_id" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_deeply_nested_values_are_left_out_of_what_people_read() -> None:
    """Python reads it, and fails to write it, or to show it."""
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    body = fields(encode_manifest(a_manifest()), "manifest") | {"history": {"deep": deep, "cost": 1.0}}
    history = decode_manifest(sealed(body, "manifest"), "k").history
    assert len(json.dumps(history)) < 200
    assert history["cost"] == 1.0
    assert record(b"[" * 100_000) == record(b"\xff") == record(b"7") == {}


# --- 500 mutations ---

_VALUES: tuple[Any, ...] = (
    *(None, True, [], {}, -1, 2**62, 10**30, 1e308, "", "x" * 5000, OBEYED, "\udcff"),
    *([[0] * 9999], {"a": {"a": {"a": 1}}}, json.loads("[" * 800 + "]" * 800)),
)
#: What is packed: a part, how often it is repeated, and what is around it.
_PACKED: tuple[tuple[bytes, int, bytes, bytes], ...] = (
    *((each, 1, b"", b"") for each in (b"", b"[]", b"\xff")),
    *((each, 10**6, b"", b"") for each in (b"[", b"7")),
    *((each, 2**27, b"", b"") for each in (b"\0", b"\xff")),
    *((each, 2**22, b"[", b"0]") for each in (b"[],", b"0,", b'"a",', b'{"b":0},', b"[[],{}],", b"1.5,")),
    *((b"a", 2**25, b'["', end) for end in (b'"]', b'\\ud83d\\ude00"]')),
)


@cache
def bomb(at: int) -> str:
    if at == len(_PACKED):
        return pack([[f"n{at}" for at in range(2**18)], ["int8"] * 2**18, [""] * 2**18, [[1]] * 2**18])
    part, count, begin, end = _PACKED[at]
    return packed(begin + part * count + end)


def mutated(chance: random.Random, body: dict[str, Any]) -> None:
    """Change up to three places: of a manifest with packed texts mostly these."""
    for _ in range(chance.randint(1, 3)):
        runs = body.get("tensors")
        if isinstance(runs, list) and runs and isinstance(runs[0], dict) and chance.random() < 0.8:
            part = chance.choice([*runs, body["state"]]) if isinstance(body.get("state"), dict) else runs[0]
            name = chance.choice([*part, "more"])
            part[name] = (
                bomb(chance.randint(0, len(_PACKED))) if chance.random() < 0.8 else chance.choice(_VALUES)
            )
            if chance.random() < 0.2:
                runs[0] |= equal_chunks(chance.choice([2**16, 2**19, 2**21]), chance.choice([1, 2, 8]))
        else:
            body[chance.choice([*body])] = chance.choice(_VALUES)


def peak_of(work: Callable[[], object]) -> int:
    """Return by how many bytes a fork of this process grows in `work`; -1 if that raises another error than a `CheckpointError`."""
    out, into = os.pipe()
    if not (child := os.fork()):
        try:
            with open("/proc/self/clear_refs", "w") as refs:
                refs.write("5")
            before = resident("VmHWM")
            with contextlib.suppress(CheckpointError):
                work()
            os.write(into, b"%d" % (resident("VmHWM") - before))
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as told:
        text = told.read()
    os.waitpid(child, 0)
    return int(text or -1)


def resident(name: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def read(decode: Callable[[bytes, str], Any], data: bytes) -> None:
    record(data)
    decode(data, "k")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_500_mutations_of_manifests_and_records_take_256_mib_at_most() -> None:
    manifest = a_manifest()
    files: list[tuple[str, bytes, Callable[[bytes, str], Any]]] = [
        ("manifest", encode_manifest(manifest), decode_manifest),
        ("commit", encode_marker(CommitMarker.of([manifest], 1.0)), decode_marker),
        ("attempt", encode_attempt(AttemptRecord("run", 3, info={"host": "a"})), decode_attempt),
    ]
    peaks: list[tuple[int, int, int]] = []
    for seed in range(500):
        chance = random.Random(seed)
        kind, data, decode = files[max(0, seed % 5 - 2)]
        body = fields(data, kind)
        mutated(chance, body)
        hostile = sealed(body, kind)
        peaks.append((peak_of(partial(read, decode, hostile)), len(hostile), seed))
        assert peaks[-1][0] >= 0, f"seed {seed}: another error than a CheckpointError"
    largest = max(peaks)
    print(f"largest: {largest[0] / MIB:.0f} MiB, by a file of {largest[1]} bytes, seed {largest[2]}")
    assert largest[0] <= 256 * MIB, largest
