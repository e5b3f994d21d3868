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

from spotguard.hooks.checkpoint.format import manifest
from spotguard.hooks.checkpoint.format.codec import (
    UnsupportedFormatError,
    decode_attempt,
    decode_manifest,
    decode_manifests,
    decode_marker,
    decode_saving,
    encode_attempt,
    encode_manifest,
    encode_marker,
    encode_saving,
)
from spotguard.hooks.checkpoint.format.manifest import (
    FORMAT,
    AttemptRecord,
    Chunk,
    CommitMarker,
    ObjectEntry,
    RankManifest,
    TensorEntry,
    bounded,
    lacks,
    reason_of,
    suspicion,
)
from spotguard.providers.errors import CheckpointError
from tests.cases import cases
from tests.fakes.checkpoint import FOREIGN, renumbered
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
    assert next(iter(whole["manifest"])) == "store_format"
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


@pytest.mark.parametrize("number", FOREIGN)
def test_another_format_is_refused_by_name(number: int | None) -> None:
    """Whatever else the file has: it may be good, and is not ours to judge."""
    for data, decode in (
        (encode_manifest(MANIFEST), decode_manifest),
        (encode_marker(MARKER), decode_marker),
        (encode_attempt(RECORD), decode_attempt),
        (encode_saving(57.0), decode_saving),
    ):
        with pytest.raises(UnsupportedFormatError, match=f"^k: {FOREIGN[number]}"):
            decode(renumbered(data, number), "k")
    with pytest.raises(UnsupportedFormatError):
        decode_manifest(sealed({"store_format": FORMAT + 1, "anything": "else"}), "k")


def test_each_file_has_the_number_of_the_format_first() -> None:
    for data in (encode_manifest(MANIFEST), encode_marker(MARKER), encode_attempt(RECORD), encode_saving(57)):
        assert data.partition(b'":{')[2].startswith(b'"store_format":1,')


def test_weights_may_lack_extras_too() -> None:
    """It lacks more than these."""
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
            decode(sealed(value | {"level": level, "missing": missing}, word), "k")


def test_a_suspicion_is_kept_and_damages_nothing() -> None:
    """Whatever its form is. A marker has the first suspicion, and its rank."""
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
        for wrong, read in ((1, ""), (None, ""), ("x" * 9999, "x" * 512)):
            assert decode(sealed(value | {"suspect": wrong}, word), "k").suspect == read
    long = replace(MANIFEST, suspect="x" * 9999)
    assert decode_manifest(encode_manifest(long), "k").suspect == "x" * 512
    assert decode_marker(encode_marker(CommitMarker.of([*others, long], 1.0)), "k").suspect == "x" * 512


def test_values_that_were_left_out_are_named_in_manifest_and_marker() -> None:
    """The marker has those of all ranks; many are the first ones and a number."""
    lacking = replace(MANIFEST, left_out=("notes.path: pathlib.Path", "notes.lock: _thread.lock"))
    assert decode_manifest(encode_manifest(lacking), "k") == lacking
    others = [replace(MANIFEST, rank=rank) for rank in range(MANIFEST.world) if rank != MANIFEST.rank]
    marker = CommitMarker.of([*others, lacking], 1.0)
    assert marker.left_out == tuple(f"{each} on rank {MANIFEST.rank}" for each in lacking.left_out)
    assert decode_marker(encode_marker(marker), "k") == marker
    assert CommitMarker.of(others, 1.0).left_out == ()
    many = bounded([f"notes.{number}: object" for number in range(1000)])
    assert (len(many), many[-1]) == (32, "and 969 more")
    assert decode_manifest(encode_manifest(replace(MANIFEST, left_out=many)), "k").left_out == many
    assert bounded(["x" * 999])[0].endswith("…")


@pytest.mark.parametrize("wrong", [None, "notes.path: Path", [1], [["a"]], ["x" * 201], ["x"] * 33])
def test_values_that_were_left_out_in_another_form_are_refused(wrong: object) -> None:
    for value, word, decode in (
        (raw(), "manifest", decode_manifest),
        (json.loads(encode_marker(MARKER))["commit"], "commit", decode_marker),
    ):
        with pytest.raises(CheckpointError, match="left_out"):
            decode(sealed(value | {"left_out": wrong}, word), "k")


def test_a_suspicion_names_its_rank_once() -> None:
    why = "the loss is nan since step 7"
    whole = suspicion([replace(MANIFEST, suspect=why)])
    assert whole == f"{why} on rank {MANIFEST.rank}"
    assert reason_of(whole, MANIFEST.rank) == why
    assert (reason_of(whole, MANIFEST.rank + 10), reason_of("", 0)) == ("", "")


def test_missing_parts_are_named_for_people() -> None:
    assert lacks("full", ()) == ""
    assert lacks("partial-extras", (1,)) == "the extras of rank 1"
    assert lacks("weights", ()) == "the optimizer's moments"
    assert lacks("weights", (0, 2)) == "the optimizer's moments and the extras of ranks 0, 2"


def test_unknown_fields_are_skipped() -> None:
    """More fields need no other format."""
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
    (edit("store_format", to=True), "store_format must be int"),
    (edit("store_format", to=0), "store_format is 0"),
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
]


@cases("change, said", BROKEN)
def test_an_impossible_manifest_is_refused(change: Callable[[dict[str, Any]], None], said: str) -> None:
    """With a right CRC, too: somebody may have written it on purpose. (`test_columns` has the tensors.)"""
    value = raw()
    change(value)
    with pytest.raises(CheckpointError) as caught:
        decode_manifest(sealed(value), "the/key")
    assert str(caught.value).startswith("the/key: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    # Also where others have said before what is right.
    with pytest.raises(CheckpointError):
        decode_manifests([("good", sealed(raw())), ("bad", sealed(value))])


def test_digests_are_numbers_by_name() -> None:
    value = raw()
    value["digests"] = {"model/w": 7}
    assert decode_manifest(sealed(value), "k").digests == {"model/w": 7}
    value["digests"] = {"model/w": "7"}
    with pytest.raises(CheckpointError, match="digests"):
        decode_manifest(sealed(value), "k")


@cases("field", [field for field in raw() if field not in ("history", "suspect", "left_out")])
def test_no_field_may_be_missing(field: str) -> None:
    """The first two are for people, and no form of them damages anything. Without the third, nothing was left out."""
    value = raw()
    del value[field]
    with pytest.raises(CheckpointError, match=field):
        decode_manifest(sealed(value), "k")


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"3",
        b"null",
        b'{"store_format":NaN}',
        b"{" * 50_000,
        b'{"store_format":1',
        b"[" * 200_000,
        b"\xff",
    ],
)
def test_json_that_is_no_manifest_is_refused(body: bytes) -> None:
    """Nor does it take the interpreter's stack."""
    with pytest.raises(CheckpointError, match=r"^k: "):
        decode_manifest(b'{"crc32":%d,"manifest":' % zlib.crc32(body) + body + b"}\n", "k")


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_change_is_read_or_refused(data: st.DataObject) -> None:
    """Any value in any place of a manifest: one kind of error, or a manifest."""
    value = raw()
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


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The suite freezes what it has imported, and Python 3.12 starts with some hundred objects frozen."""
    monkeypatch.setattr(manifest, "_MADE", 0)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_decoded_manifests_are_old_for_the_collector() -> None:
    """The collector's next look, at what is young, does not go through it."""
    read = decode_manifests([("a", encode_manifest(MANIFEST))])
    assert not any(each is read[0].tensors for each in gc.get_objects(generation=0))


@pytest.mark.usefixtures("nothing_frozen")
def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    decode_manifests([("a", encode_manifest(MANIFEST))])
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("nothing_frozen")
def test_few_decoded_manifests_stay_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count what is frozen takes longer than to look at them."""
    monkeypatch.setattr(manifest, "_MADE", 1_000_000)
    read = decode_manifests([("a", encode_manifest(MANIFEST))])
    assert any(each is read[0].tensors for each in gc.get_objects(generation=0))


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
