"""`spotguard verify` on a store that fails, cuts and spoils: what is damaged is said, what only failed for now is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotguard.cli.commands.checkpoints.verify import verdicts_of
from spotguard.cli.main import main
from spotguard.cli.select_checkpoint import Target
from spotguard.hooks.checkpoint.catalog import examine
from spotguard.hooks.checkpoint.format.codec import encode_manifest, open_file
from spotguard.hooks.checkpoint.format.keys import manifest_name
from spotguard.hooks.checkpoint.format.manifest import Chunk, RankManifest, TensorEntry
from spotguard.hooks.checkpoint.index import IndexBuilder
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.errors import UnavailableError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.file import FileStore
from tests.fakes.checkpoint import FOREIGN, Save
from tests.fakes.clock import Impatient
from tests.fakes.commit import put_index, put_manifest
from tests.fakes.reads import PATIENCE, Reads
from tests.fakes.store import FakeStore, Fault


def filled() -> Reads:
    """Two whole checkpoints of several objects."""
    store = Reads()
    for number in (1, 2):
        Save(step=10 * number, save=number, target=1024).write(store)
    store.calls.clear()
    return store


def verdicts(store: Reads, everything: bool = False) -> list[dict[str, Any]]:
    return verdicts_of(Target(store, "run"), everything=everything, say=None, clock=Impatient())


@pytest.mark.parametrize("every", [2, 3])
def test_a_transient_failure_is_no_damage(every: int) -> None:
    """At every k-th manifest and range: every checkpoint is found whole, each byte read once."""
    store = filled()
    store.faults = [Fault(at) for at in range(1, 1000, every)]
    said = verdicts(store, everything=True)
    assert [(each["step"], each["status"]) for each in said] == [(20, "complete"), (10, "complete")]
    plain = filled()
    verdicts(plain, everything=True)
    failed = sum(at < len(store.calls) for at in range(1, 1000, every))
    assert failed > 5
    assert len(store.calls) == len(plain.calls) + failed


def test_in_the_background_one_request_is_in_flight_and_the_rate_is_kept() -> None:
    store, clock = filled(), Impatient()
    chosen, folders = Target(store, "run").chosen()
    whole = examine(store, chosen[0], folders)
    store.hold = lambda number, key, start: number == 0
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(verify, store, whole, clock=clock, rate=1e3)
        assert store.held.wait(PATIENCE)
        while clock.now < 60:  # nothing is sent again, however long it takes
            pass
        assert len(store.reads) == 1
        store.go.set()
        assert found.result(PATIENCE) == []
    assert sum(each for each in clock.waits if each != 0.25) == pytest.approx(store.nbytes / 1e3, rel=0.01)


def test_a_store_that_is_not_there_is_said_at_once() -> None:
    """Nobody waits a minute for an URL that is spelt wrong."""
    store = filled()
    store.faults = [Fault(at) for at in range(1000)]
    with pytest.raises(UnavailableError, match=r"as it was told to$"):
        verdicts(store)
    assert len(store.calls) == 1


def test_a_store_that_goes_away_for_good_is_no_verdict() -> None:
    """What could not be read is neither whole nor damaged."""
    store = filled()
    store.faults = [Fault(at) for at in range(5, 5000)]
    with pytest.raises(UnavailableError, match="What it holds is not known"):
        verdicts(store)


def test_all_that_is_damaged_is_said_and_nothing_else() -> None:
    """By object, tensor and place; then the next older one is looked at."""
    store = filled()
    prefix = Save(step=20, save=2).prefix
    keys = sorted(key for key in store.objects if key.startswith(prefix) and key.endswith("safetensors"))
    assert len(keys) > 3
    store.corrupt(keys[0], 3)
    store.corrupt(keys[2], len(store.objects[keys[2]]) - 1)
    newest, older = verdicts(store)
    assert (newest["status"], older["status"]) == ("damaged", "complete")
    assert [line.partition(": ")[0] for line in newest["damage"]] == [keys[0], keys[2]]
    assert (newest["objects"], older["objects"]) == ([keys[0], keys[2]], [])
    assert "header" in newest["damage"][0]
    assert "tensor" in newest["damage"][1]


#: Values of every kind that needs numpy or torch.
FOREIGN_VALUES: dict[str, Any] = {
    "array": {"$": "numpy.ndarray", "dtype": "<f8", "shape": [1], "order": "C", "base64": "AAAAAAAAAAA="},
    "scalar": {"$": "numpy.scalar", "dtype": "<M8[ns]", "base64": "AAAAAAAAAAA="},
    "text": [{"$": "numpy.str_", "value": "a"}, {"$": "numpy.bytes_", "base64": "AA=="}],
    "dtypes": [{"$": "numpy.dtype", "name": "<U3"}, {"$": "torch.dtype", "name": "float64"}],
    "shape": {"$": "torch.Size", "items": [2]},
    "device": {"$": "torch.device", "name": "cuda:1"},
    "weights": [
        {"$": "parameter", "name": "notes#1", "requires_grad": True},
        {"$": "tensor", "name": "notes#1"},
    ],
}


def saved_with(store: BlobStore, step: int, notes: dict[str, Any]) -> RankManifest:
    """A whole checkpoint whose state has these notes, encoded, and a tensor of theirs."""
    tensors = {"notes#1": ("float32", (4,))}
    (manifest,) = Save(step=step, save=step, world=1, tensors=tensors).write(store, marker=False)
    state = {key: tree for key, tree in manifest.state.items() if key != "notes#1"}
    manifest = replace(manifest, state={**state, "notes": notes})
    put_manifest(store, manifest)
    return manifest


def test_a_state_that_no_restore_decodes_is_damage_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All checksums agree. The manifest is named, and what is wrong with it; prune does not rely on it."""
    store = FileStore(tmp_path)
    saved_with(store, 10, FOREIGN_VALUES)
    bad = saved_with(store, 20, {**FOREIGN_VALUES, "scheduler": {"$": "Quaternion", "of": [1, 2]}})
    assert main(["verify", store.url]) == 1
    said = capsys.readouterr().out.splitlines()
    assert bad.key in said[0]
    assert "state of 'notes': " in said[0]
    assert "type 'Quaternion' is unknown to this version" in said[0]
    assert said[1].startswith("complete run run, step 10 ")
    assert main(["prune", store.url, "--keep", "1", "--json"]) == 0
    (done,) = json.loads(capsys.readouterr().out)["runs"]
    assert (done["checked"], done["deleted"]) == ("000000010-0001-0010", [])


def test_neither_torch_nor_numpy_is_loaded_to_judge_a_state_of_their_values(tmp_path: Path) -> None:
    """Neither command needs them, where a checkpoint is full of their values."""
    store = FileStore(tmp_path)
    for step in (10, 20):
        saved_with(store, step, FOREIGN_VALUES)
    program = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from spotguard.cli.main import main\n"
        f"sys.exit(main(['verify', {store.url!r}, '--all']) or main(['prune', {store.url!r}, '--keep', '1']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deleted 1 checkpoint" in done.stdout


def test_an_index_that_differs_from_the_manifests_is_damage() -> None:
    """A restore reads it in their place. One that is damaged itself is none: the restore reads the manifests then."""
    store, save = FakeStore(), Save(step=20, save=2)
    manifests = save.write(store)
    files = [(each, encode_manifest(each)) for each in manifests]
    for spoilt, status in ((False, "complete"), (True, "damaged")):
        builder = IndexBuilder()
        for manifest, data in files:
            told = replace(manifest, state={}) if spoilt and manifest.rank == 1 else manifest
            builder.add(open_file(encode_manifest(told), "", "manifest"), len(data))
        put_index(store, "run", save.name, builder)
        said = verdicts_of(Target(store, "run"), everything=False, say=None, clock=Impatient())
        assert [each["status"] for each in said] == [status]
    assert said[0]["damage"] == [f"{save.prefix}INDEX.json differs from the manifests of its checkpoint"]
    store.corrupt(f"{save.prefix}INDEX.json", 40)
    said = verdicts_of(Target(store, "run"), everything=False, say=None, clock=Impatient())
    assert [each["status"] for each in said] == ["complete"]


def test_a_bit_that_flips_on_its_way_is_no_damage() -> None:
    store = filled()
    store.spoil = lambda number, key, start: number == 1
    (said,) = verdicts(store)
    assert (said["status"], said["damage"]) == ("complete", [])


def pruned_at(store: Reads, *which: int, read: int, then: Callable[[], object] = lambda: None) -> None:
    """In the middle of that read somebody removes these saves, manifests first, and does something more."""

    def remove(number: int, key: str, start: int) -> bool:
        if number == read:
            gone = [
                key
                for key in store.objects
                for each in which
                if Save(step=10 * each, save=each).prefix in key
            ]
            for key in sorted(gone, key=lambda key: key.endswith("safetensors")):
                del store.objects[key]
            then()
        return False

    store.hold = remove


def statuses(found: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(each["step"], each["status"]) for each in found]


def test_a_checkpoint_removed_during_its_read_is_no_damage() -> None:
    """A prune of a live run, in the middle of the older one."""
    store, plain = filled(), filled()
    verdicts(plain)
    pruned_at(store, 1, read=len(plain.reads) + 1)
    assert statuses(verdicts(store, everything=True)) == [(20, "complete"), (10, "removed")]


def test_a_checkpoint_removed_before_its_manifest_is_read_is_no_damage() -> None:
    store, plain = filled(), filled()
    verdicts(plain)
    pruned_at(store, 1, read=len(plain.reads) - 1)
    assert statuses(verdicts(store, everything=True)) == [(20, "complete"), (10, "removed")]


def test_the_successor_of_a_removed_checkpoint_is_read_instead() -> None:
    """And what went with it is not looked at again."""
    store = filled()
    pruned_at(store, 1, 2, read=1, then=lambda: Save(step=30, save=3).write(store))
    assert statuses(verdicts(store)) == [(20, "removed"), (30, "complete")]


def test_an_object_that_is_gone_while_its_manifest_stands_is_damage() -> None:
    """No prune leaves that behind."""
    store = filled()
    prefix = Save(step=20, save=2).prefix
    keys = [key for key in store.objects if key.startswith(prefix) and key.endswith("safetensors")]

    def lose(number: int, key: str, start: int) -> bool:
        if number == 0:
            del store.objects[keys[-1]]
        return False

    store.hold = lose
    newest, _ = verdicts(store)
    assert newest["status"] == "damaged"
    assert keys[-1] in newest["damage"][0]


@pytest.mark.parametrize("number", FOREIGN)
def test_another_format_is_no_damage_and_no_verdict(number: int | None) -> None:
    """A checkpoint of another version is neither good nor bad here."""
    store = filled()
    Save(step=30, save=3).write_foreign(store, number)
    assert statuses(verdicts(store)) == [(30, "unsupported"), (20, "complete")]


def test_a_chunk_too_large_to_be_held_is_no_damage_and_no_verdict(tmp_path: Path) -> None:
    """As one of another version may be. Nothing of it is read, and what is older is looked at."""
    store, save, size = FileStore(tmp_path), Save(step=30, save=3, world=1), 256 * 2**20
    Save(step=10).write(store)
    (manifest,) = save.write(store, marker=False)
    entry = manifest.objects[0]
    os.truncate(
        make_writable(tmp_path / manifest.object_key(0)), entry.header + size
    )  # a hole: no byte on the disk
    big = TensorEntry(
        "big", "uint8", (size,), (Chunk((0,), (size,), 0, entry.header, entry.header + size, 0),)
    )
    claimed = replace(manifest, objects=(replace(entry, size=entry.header + size),), tensors=(big,), state={})
    path = make_writable(tmp_path / save.prefix / manifest_name(0, 1))
    path.write_bytes(encode_manifest(claimed))
    meant = Target(store, "run")
    assert statuses(verdicts_of(meant, everything=False, say=None, clock=Impatient())) == [
        (30, "unsupported"),
        (10, "complete"),
    ]


def make_writable(path: Path) -> Path:
    path.chmod(0o644)
    return path
