"""What is written is read again, and what is not exactly that is refused with its key and the reason."""

from __future__ import annotations

import gc
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.codec import (
    NewerFormatError,
    decode_attempt,
    decode_manifest,
    decode_manifests,
    decode_marker,
    encode_attempt,
    encode_manifest,
    encode_marker,
)
from spotguard.hooks.checkpoint.format.manifest import (
    FORMAT,
    AttemptRecord,
    Chunk,
    CommitMarker,
    ObjectEntry,
    RankManifest,
    TensorEntry,
    lacks,
    reason_of,
    suspicion,
)
from spotguard.providers.errors import CheckpointError
from tests.cases import cases
from tests.tiers import examples

OBJECTS = (
    ObjectEntry("00001-of-00004/0000.safetensors", 1000, 88, 7),
    ObjectEntry("00003-of-00004/0002.safetensors", 500, 80, 9, checkpoint="000000900-0003-0006"),
)
TENSORS = (
    TensorEntry(
        "w", "float32", (8, 4), (Chunk((2, 0), (2, 4), 0, 88, 120, 1), Chunk((4, 0), (2, 4), 1, 80, 112, 2))
    ),
    TensorEntry("step", "float32", (), (Chunk((), (), 0, 120, 124, 2**32 - 1),)),
    TensorEntry("none", "int64", (0, 3), ()),
    TensorEntry("moment", "float32", (2,), (Chunk((0,), (2,), 0, 124, 128, 5),), "bfloat16"),
    TensorEntry("ä\n", "bool", (1,), (Chunk((0,), (1,), 0, 128, 129, 5),)),
)
MANIFEST = RankManifest(
    run_id="run", step=1200, attempt=3, save=7, rank=1, world=4, objects=OBJECTS, tensors=TENSORS,
    state={"scheduler": {"$": "tuple", "items": [1, "\ud800"]}}, environment={"torch": "2.13.0", "threads": 2},
    level="weights", kind="emergency", incarnation="nonce", created=1.5,
)  # fmt: skip
MARKER = CommitMarker("run", 1200, 3, 7, 4, 9, 12345, "full", "manual", 2.5)
RECORD = AttemptRecord("run", 3, "nonce", 4, {"host": "a", "restored": None}, 3.5)


def sealed(value: Any, word: str = "manifest") -> bytes:
    """Any JSON as a file whose CRC is right."""
    body = json.dumps(value).encode()
    return b'{"crc32":%d,"%s":' % (zlib.crc32(body), word.encode()) + body + b"}\n"


def raw() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(encode_manifest(MANIFEST))["manifest"]
    return value


def raw_of_format_2() -> dict[str, Any]:
    """The same manifest as an older spotguard wrote it."""
    tensors = [entry._asdict() for entry in TENSORS]
    for each in tensors:
        if not each["stored"]:
            del each["stored"]
    listed: dict[str, Any] = json.loads(
        json.dumps({"format": 2, "tensors": tensors, "state": MANIFEST.state})
    )
    return raw() | listed


def test_a_manifest_comes_back() -> None:
    """Every field of it."""
    assert decode_manifest(encode_manifest(MANIFEST), "k") == MANIFEST


def test_a_marker_and_an_attempt_come_back() -> None:
    """Every field of them."""
    assert decode_marker(encode_marker(MARKER), "k") == MARKER
    assert decode_attempt(encode_attempt(RECORD), "k") == RECORD


def test_it_is_plain_json_with_the_crc_of_its_inside() -> None:
    """Any tool reads it, and can check it too."""
    data = encode_manifest(MANIFEST)
    assert data.isascii()
    whole = json.loads(data)
    assert list(whole) == ["crc32", "manifest"]
    assert next(iter(whole["manifest"])) == "format"
    inside = data[data.index(b'"manifest":') + 11 : -2]
    assert zlib.crc32(inside) == whole["crc32"]


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_is_noticed(data: st.DataObject) -> None:
    """In the frame as in the body."""
    file = bytearray(encode_manifest(MANIFEST))
    file[data.draw(st.integers(0, len(file) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CheckpointError, match=r"^the/key: "):
        decode_manifest(bytes(file), "the/key")


@pytest.mark.parametrize("cut", [0, 1, 20, 100, -3, -1])
def test_a_file_cut_short_is_noticed(cut: int) -> None:
    """Wherever a writer was stopped that is not atomic."""
    with pytest.raises(CheckpointError, match="the/key: not a manifest file of spotguard, or truncated"):
        decode_manifest(encode_manifest(MANIFEST)[:cut], "the/key")


def test_one_kind_of_file_is_not_another() -> None:
    """A marker in a manifest's place is no manifest."""
    for decode in (decode_manifest, decode_attempt):
        with pytest.raises(CheckpointError):
            decode(encode_marker(MARKER), "k")


def test_a_newer_format_is_refused_by_name() -> None:
    """Whatever else it says: it may be good, and is not ours to judge."""
    with pytest.raises(
        NewerFormatError,
        match=f"k: format version {FORMAT + 1} is newer than {FORMAT}: read it with a newer spotguard",
    ):
        decode_manifest(sealed({"format": FORMAT + 1, "anything": "else"}), "k")


def test_a_marker_of_a_level_that_format_1_has_not_is_of_format_2() -> None:
    """So that a reader of format 1 refuses it by name. What that reader understands is written as 1, for it may read the same
    store."""
    lower = replace(MANIFEST, level="partial-extras", missing=(0, 3))
    assert decode_manifest(encode_manifest(lower), "k") == lower
    marker = CommitMarker.of([lower], 1.0)
    assert (marker.format, marker.missing) == (2, (0, 3))
    assert decode_marker(encode_marker(marker), "k") == marker
    assert CommitMarker.of([MANIFEST], 1.0).format == 1
    with pytest.raises(CheckpointError, match="level 'partial-extras' needs format 2, not 1"):
        decode_marker(encode_marker(replace(marker, format=1)), "k")


def test_a_manifest_of_an_older_format_is_read() -> None:
    """Both have tensors as entries, and one of format 1 says no more than that."""
    assert decode_manifest(sealed(raw_of_format_2()), "k") == replace(MANIFEST, format=2)
    assert decode_manifest(sealed(raw_of_format_2() | {"format": 1}), "k") == replace(MANIFEST, format=1)
    assert decode_manifests([("a", sealed(raw_of_format_2())), ("b", encode_manifest(MANIFEST))]) == [
        replace(MANIFEST, format=2),
        MANIFEST,
    ]


def test_weights_may_lack_extras_too() -> None:
    """That says no reader of format 1 anything wrong: it lacks more than these."""
    lower = replace(MANIFEST, missing=(2,))
    assert decode_manifest(encode_manifest(lower), "k") == lower


@pytest.mark.parametrize(
    ("level", "missing"),
    [
        ("partial-extras", []),
        ("full", [1]),
        ("partial-extras", [4]),
        ("partial-extras", [-1]),
        ("partial-extras", [1, 1]),
        ("partial-extras", [2, 1]),
        ("partial-extras", ["1"]),
        ("partial-extras", [True]),
        ("partial-extras", 1),
        ("partial-extras", None),
    ],
)
def test_missing_ranks_that_cannot_be_are_refused(level: str, missing: object) -> None:
    """In manifests as in markers."""
    for value, word, decode in (
        (raw(), "manifest", decode_manifest),
        (json.loads(encode_marker(MARKER))["commit"], "commit", decode_marker),
    ):
        with pytest.raises(CheckpointError, match="missing"):
            decode(sealed(value | {"format": 2, "level": level, "missing": missing}, word), "k")


def test_older_files_do_not_say_who_is_missing() -> None:
    value = raw()
    del value["missing"]
    assert decode_manifest(sealed(value), "k") == MANIFEST


def test_a_suspicion_is_kept_and_older_files_have_none() -> None:
    """The format stays: a reader of before skips the field, and its text never damages a checkpoint. A marker has the first suspicion, and its rank."""
    why = "the loss is nan since step 7"
    suspect = replace(MANIFEST, suspect=why)
    assert decode_manifest(encode_manifest(suspect), "k") == suspect
    others = [replace(MANIFEST, rank=rank) for rank in range(MANIFEST.world) if rank != MANIFEST.rank]
    marker = CommitMarker.of([*others, suspect], 1.0)
    assert marker.suspect == f"{why} on rank {MANIFEST.rank}"
    assert decode_marker(encode_marker(marker), "k") == marker
    assert CommitMarker.of(others, 1.0).suspect == ""
    for value, word, decode in (
        (raw(), "manifest", decode_manifest),
        (json.loads(encode_marker(MARKER))["commit"], "commit", decode_marker),
    ):
        del value["suspect"]
        assert decode(sealed(value, word), "k").suspect == ""
        for wrong, read in ((1, ""), (None, ""), ("x" * 9999, "x" * 512)):
            assert decode(sealed(value | {"suspect": wrong}, word), "k").suspect == read
    long = replace(MANIFEST, suspect="x" * 9999)
    assert decode_manifest(encode_manifest(long), "k").suspect == "x" * 512
    assert decode_marker(encode_marker(CommitMarker.of([*others, long], 1.0)), "k").suspect == "x" * 512


def test_a_suspicion_names_its_rank_once() -> None:
    why = "the loss is nan since step 7"
    whole = suspicion([replace(MANIFEST, suspect=why)])
    assert whole == f"{why} on rank {MANIFEST.rank}"
    assert reason_of(whole, MANIFEST.rank) == why
    assert (reason_of(whole, MANIFEST.rank + 10), reason_of("", 0)) == ("", "")


def test_what_is_lacking_is_said_to_people() -> None:
    assert lacks("full", ()) == ""
    assert lacks("partial-extras", (1,)) == "the extras of rank 1"
    assert lacks("weights", ()) == "the optimizer's moments"
    assert lacks("weights", (0, 2)) == "the optimizer's moments and the extras of ranks 0, 2"


def test_what_a_newer_writer_says_beside_is_skipped() -> None:
    """Saying more is free within a format."""
    value = raw() | {"digest": "x"}
    value["tensors"][0]["digest"] = "y"
    value["objects"][0]["digest"] = "z"
    assert decode_manifest(sealed(value), "k") == MANIFEST


def edit(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(value: dict[str, Any]) -> None:
        at: Any = value
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = to

    return apply


BROKEN = [
    (edit("format", to=True), "format must be int"),
    (edit("format", to=0), "format is 0"),
    (edit("run_id", to=None), "run_id must be str"),
    (edit("run_id", to="x" * 200), "run_id has 200 characters"),
    (edit("step", to=-1), "step is -1"),
    (edit("step", to=10**30), "step is"),
    (edit("step", to=1.0), "step must be int"),
    (edit("rank", to=4), "rank is 4, expected 0 to 3"),
    (edit("world", to=10**9), "world is"),
    (edit("level", to="half"), "level is 'half', expected one of full, partial-extras, weights"),
    (edit("kind", to=["full"]), "kind is"),
    (edit("created", to="now"), "created is 'now', not a time"),
    (edit("created", to=-1), "created is"),
    (edit("created", to=9e11), "created is '9"),
    (edit("state", to=[]), "state must be dict"),
    (edit("objects", to={}), "objects must be list"),
    (edit("objects", 0, to=3), "objects[0] is not an object"),
    (edit("objects", 0, "size", to=-5), "size is -5"),
    (edit("objects", 0, "header", to=2000), "header is 2000"),
    (edit("objects", 0, "header_crc32", to=2**32), "header_crc32 is"),
    (edit("objects", 0, "name", to="../../x"), "object name '../../x' is not a name that spotguard gives"),
    (edit("objects", 0, "name", to="/etc/passwd"), "is not a name that spotguard gives"),
    (
        edit("objects", 0, "name", to="00002-of-00004/0000.safetensors"),
        "is not in the directory of rank 1 of 4",
    ),
    (edit("objects", 1, "checkpoint", to="../000000900-0003-0006"), "checkpoint name"),
    (edit("objects", 1, "checkpoint", to="000000900-0002-0006"), "not an earlier checkpoint of this attempt"),
    (edit("objects", 1, "checkpoint", to="000001200-0003-0007"), "not an earlier checkpoint of this attempt"),
    (edit("objects", 1, "checkpoint", to="000001300-0003-0008"), "not an earlier checkpoint of this attempt"),
    (edit("objects", 1, to=raw()["objects"][0]), "is listed twice"),
    (edit("tensors", 0, to=7), "tensors[0] is not a tensor entry"),
    (edit("tensors", 0, to={}), "tensors[0] is not a tensor entry"),
    (edit("tensors", 0, "name", to=""), "tensors[0] has no usable name"),
    (edit("tensors", 0, "name", to=3), "tensors[0] has no usable name"),
    (edit("tensors", 1, "name", to="w"), "tensor 'w' is listed twice"),
    (edit("tensors", 0, "dtype", to="float33"), "tensor 'w' has dtype 'float33'"),
    (edit("tensors", 0, "dtype", to=[]), "tensor 'w' has dtype"),
    (edit("tensors", 3, "stored", to="object"), "tensor 'moment' has dtype 'object'"),
    (edit("tensors", 3, "stored", to=1), "tensor 'moment' has dtype"),
    (edit("tensors", 0, "shape", to="88"), "tensor 'w' lacks its list of sizes"),
    (edit("tensors", 0, "shape", to=[8, -4]), "tensor 'w' has a dimension of -4"),
    (edit("tensors", 0, "shape", to=[True, 4]), "tensor 'w' has a dimension of True"),
    (edit("tensors", 0, "shape", to=[8.0, 4]), "tensor 'w' has a dimension of 8.0"),
    (edit("tensors", 0, "shape", to=[2**40, 2**40]), "tensor 'w' is too large to exist"),
    (edit("tensors", 0, "shape", to=[1] * 65), "tensor 'w' is too large to exist"),
    (edit("tensors", 0, "chunks", to=None), "tensor 'w' lacks its list of sizes or of chunks"),
    (edit("tensors", 0, "chunks", 0, to=[]), "a chunk of tensor 'w' is not a box"),
    (edit("tensors", 0, "chunks", 0, to={}), "a chunk of tensor 'w' is not a box"),
    (edit("tensors", 0, "chunks", 0, 0, to=[2]), "a chunk of tensor 'w' is not a box of 2 dimensions"),
    (edit("tensors", 0, "chunks", 0, 1, to=[2, 4, 1]), "a chunk of tensor 'w' is not a box of 2 dimensions"),
    (edit("tensors", 0, "chunks", 0, 0, to=[7, 0]), "a chunk of tensor 'w' is outside its shape"),
    (edit("tensors", 0, "chunks", 0, 0, to=[-1, 0]), "a chunk of tensor 'w' is outside its shape"),
    (edit("tensors", 0, "chunks", 0, 0, to=[2.0, 0]), "a chunk of tensor 'w' is outside its shape"),
    (
        edit("tensors", 0, "chunks", 0, 2, to=2),
        "a chunk of tensor 'w' refers to object 2, but there are 2 objects",
    ),
    (
        edit("tensors", 0, "chunks", 0, 2, to=-1),
        "a chunk of tensor 'w' refers to object -1, but there are 2 objects",
    ),
    (edit("tensors", 0, "chunks", 0, 2, to=True), "a chunk of tensor 'w' gives the place"),
    (
        edit("tensors", 0, "chunks", 0, 3, to=80),
        "at bytes 80 to 120 is outside its object's bytes 88 to 1000",
    ),
    (edit("tensors", 0, "chunks", 0, 4, to=1004), "at bytes 88 to 1004 is outside"),
    (edit("tensors", 0, "chunks", 0, 4, to=121), "has 33 bytes, but its box needs 32"),
    (edit("tensors", 0, "chunks", 0, 5, to=2**32), "a chunk of tensor 'w' has a CRC32 of 4294967296"),
    (edit("tensors", 0, "chunks", 0, 5, to="1"), "a chunk of tensor 'w' gives the place"),
]


@cases("change, said", BROKEN)
def test_what_cannot_be_is_refused(change: Callable[[dict[str, Any]], None], said: str) -> None:
    """With a right CRC, too: somebody may have written it on purpose. (`test_columns` has the tensors of format 3.)"""
    value = raw_of_format_2()
    change(value)
    with pytest.raises(CheckpointError) as caught:
        decode_manifest(sealed(value), "the/key")
    assert str(caught.value).startswith("the/key: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    # Also where others have said before what is right.
    with pytest.raises(CheckpointError):
        decode_manifests([("good", sealed(raw_of_format_2())), ("bad", sealed(value))])


def test_digests_are_numbers_by_name() -> None:
    """And a manifest from before they were written has none."""
    value = raw()
    value["digests"] = {"model/w": 7}
    assert decode_manifest(sealed(value), "k").digests == {"model/w": 7}
    del value["digests"]
    assert decode_manifest(sealed(value), "k").digests == {}
    value["digests"] = {"model/w": "7"}
    with pytest.raises(CheckpointError, match="digests"):
        decode_manifest(sealed(value), "k")


@cases("field", [field for field in raw() if field not in ("digests", "missing", "history", "suspect")])
def test_no_field_may_be_missing(field: str) -> None:
    """Each is needed, or it would not be written; these came later."""
    value = raw()
    del value[field]
    with pytest.raises(CheckpointError, match=field):
        decode_manifest(sealed(value), "k")


@pytest.mark.parametrize(
    "body", [b"[]", b"3", b"null", b'{"format":NaN}', b"{" * 50_000, b'{"format":1', b"[" * 200_000, b"\xff"]
)
def test_json_that_is_no_manifest_is_refused(body: bytes) -> None:
    """Nor does it take the interpreter's stack."""
    with pytest.raises(CheckpointError, match=r"^k: "):
        decode_manifest(b'{"crc32":%d,"manifest":' % zlib.crc32(body) + body + b"}\n", "k")


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_change_is_read_or_refused(data: st.DataObject) -> None:
    """Any value in any place of a manifest: one kind of error, or a manifest."""
    value = data.draw(st.sampled_from([raw, raw_of_format_2]))()
    at: Any = value
    while True:
        place = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[place], (dict, list)) or not at[place] or data.draw(st.booleans()):
            break
        at = at[place]
    at[place] = data.draw(
        st.sampled_from([None, True, -1, 0, 1, 2**70, 1.5, "", "x", [], [0], [[0]], {}, {"a": 1}, 10**400])
    )
    try:
        decode_manifest(sealed(value), "k")
    except CheckpointError:
        return


def test_many_are_read_with_the_collector_at_rest() -> None:
    """And it is as it was afterwards, also when one is damaged."""
    files = [("a", encode_manifest(MANIFEST)), ("b", encode_manifest(MANIFEST))]
    assert decode_manifests(files) == [MANIFEST, MANIFEST]
    assert gc.isenabled()
    with pytest.raises(CheckpointError, match=r"^c: "):
        decode_manifests([*files, ("c", b"")])
    assert gc.isenabled()
    gc.disable()
    try:
        decode_manifests(files)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_read_is_old_and_what_somebody_froze_stays_frozen() -> None:
    """The collector's next look, at what is young, does not go through it."""
    files = [("a", encode_manifest(MANIFEST))]
    gc.unfreeze()  # Python 3.12 starts with some hundred objects frozen
    read = decode_manifests(files)
    assert not any(each is read[0].tensors for each in gc.get_objects(generation=0))
    gc.freeze()
    try:
        decode_manifests(files)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_another_thread_leaves_the_collector_alone() -> None:
    """What a training script switches off while the saving thread reads stays off."""
    seen: list[bool] = []

    def files() -> Iterator[tuple[str, bytes]]:
        seen.append(gc.isenabled())
        gc.disable()  # the script, meanwhile
        yield "a", encode_manifest(MANIFEST)

    reader = threading.Thread(target=lambda: decode_manifests(files()), name="reader")
    try:
        reader.start()
        reader.join()
        assert seen == [True]
        assert not gc.isenabled()
    finally:
        gc.enable()
