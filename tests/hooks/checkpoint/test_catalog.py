"""What a store holds of a run: what is whole is found, what is not is never taken for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spotguard.hooks.checkpoint.catalog import find_whole, scan, whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError, encode_manifest
from spotguard.hooks.checkpoint.format.keys import MARKER, CheckpointName, manifest_name
from spotguard.hooks.checkpoint.format.manifest import Chunk, RankManifest, TensorEntry, most_bytes
from spotguard.hooks.checkpoint.listing import list_checkpoints, list_runs
from spotguard.providers.errors import CheckpointError, UnavailableError
from spotguard.providers.stores.base import BlobStore, ObjectInfo
from tests.fakes.called import CalledStore, Request
from tests.fakes.checkpoint import FOREIGN, Save
from tests.fakes.commit import put_manifest
from tests.fakes.pruned import prune
from tests.fakes.store import FakeStore, Fault, Killed


def newest(store: BlobStore) -> str:
    whole = find_whole(store, "run")
    return "" if whole is None else str(whole.name)


def test_nothing_is_found_in_an_empty_store() -> None:
    """Nor in one that holds only other runs."""
    store = FakeStore()
    assert find_whole(store, "run") is None
    Save(run_id="run-2").write(store)
    assert find_whole(store, "run") is None
    assert list_checkpoints(store, "run") == []


def test_the_newest_is_of_the_latest_attempt() -> None:
    """Then of the highest step, then of the highest save."""
    store = FakeStore()
    for attempt, step, save in [(1, 900, 0), (2, 100, 0), (2, 100, 1), (2, 50, 2)]:
        Save(attempt=attempt, step=step, save=save).write(store)
    names = [str(whole.name) for whole in whole_checkpoints(store, "run")]
    assert names == [
        "000000100-0002-0001",
        "000000100-0002-0000",
        "000000050-0002-0002",
        "000000900-0001-0000",
    ]


def test_a_chosen_step_is_found() -> None:
    """The newest save of it; nothing where there is none."""
    store = FakeStore()
    for attempt, step in [(1, 10), (2, 10), (2, 20)]:
        Save(attempt=attempt, step=step).write(store)
    found = find_whole(store, "run", step=10)
    assert found is not None
    assert found.name == CheckpointName(2, 10, 0)
    assert find_whole(store, "run", step=15) is None


class Swollen(FakeStore):
    """Says that the newest manifest of rank 1 has more bytes than any can have."""

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        for info in super().list(prefix, timeout=timeout):
            large = info.key.endswith("000000020-0001-0000/00001-of-00002.json")
            yield replace(info, size=most_bytes(2) + 1) if large else info


def test_a_manifest_that_is_too_large_is_refused_before_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """It could fill all memory. It is damage, and the next older checkpoint is taken; nor does a prune read it."""
    store = Swollen()
    for step in (10, 20):
        Save(step=step).write(store)
    store.calls.clear()
    assert newest(store) == "000000010-0001-0000"
    assert "00001-of-00002.json has 603979793 bytes, but a manifest of 2 ranks has at most" in caplog.text
    prune(store, "run", keep=1)
    asked = [
        key for verb, key in store.calls if verb == "get" and key.endswith("20-0001-0000/00001-of-00002.json")
    ]
    assert asked == []


def test_the_cap_of_a_manifest_follows_from_the_ranks_and_the_tensors() -> None:
    """Ten thousand ranks of a mixture of 100,000 experts are far below it; a terabyte is above it."""
    name = "optimizer/state/model/layers.47.mlp.experts.127.gate_up_proj.weight/exp_avg_sq"
    chunk = Chunk((123456, 0), (123456, 16384), 1234, 123456789, 123456789, 2**32 - 1)
    entries = (TensorEntry(name, "bfloat16", (2**20, 16384), (chunk,), "bfloat16"),)
    plain = RankManifest("run", 10, 1, 0, 0, 10_000, missing=())
    one = len(encode_manifest(replace(plain, tensors=entries, digests={name: 2**32 - 1})))
    each = one - len(encode_manifest(plain))
    assert 300_000 * each < most_bytes(10_000) < most_bytes(20_000) < 2**30


def test_step_0_may_be_chosen() -> None:
    """It is a step like any other, and no word for the newest."""
    store = FakeStore()
    Save(step=0).write(store)
    Save(step=10, save=1).write(store)
    found = find_whole(store, "run", step=0)
    assert found is not None
    assert found.name.step == 0
    assert [whole.name.step for whole in whole_checkpoints(store, "run", step=0)] == [0]
    store = FakeStore()
    Save(step=10).write(store)
    assert find_whole(store, "run", step=0) is None


def test_damage_is_warned_about_and_a_save_under_way_is_not(caplog: pytest.LogCaptureFixture) -> None:
    """Where nobody asked to be told: a restore beside a save is an everyday thing."""
    store, save = FakeStore(), Save(step=20)
    Save(step=10).write(store)
    save.write_rank(store, 0)
    assert newest(store) == "000000010-0001-0000"
    assert caplog.records == []
    save.write(store)
    store.corrupt(save.prefix + manifest_name(1, 2), 300)
    assert newest(store) == "000000010-0001-0000"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.startswith("skipping checkpoint 000000020-0001-0000 of run run: ")
    assert "damaged" in record.message


def test_the_marker_is_only_a_shortcut() -> None:
    """A full set counts without it; it counts for nothing without the set."""
    store, save = FakeStore(), Save(step=20)
    Save(step=10).write(store)
    save.write(store, marker=False)
    assert newest(store) == str(save.name)
    lone = Save(step=30)
    lone.write(store)
    store.delete([lone.prefix + manifest_name(0, 2)])
    assert newest(store) == str(save.name)


@pytest.mark.parametrize("seed", range(3))
def test_a_save_that_dies_anywhere_is_never_found_before_its_last_manifest(seed: int) -> None:
    """Killed at each call of the store, before and after its effect; ranks interleaved in any order."""
    chance = random.Random(seed)
    for after in (False, True):
        at = 0
        while True:
            store = FakeStore()
            Save(step=10).write(store)
            store.calls.clear()
            store.faults = [Fault(at, after=after, error=Killed)]
            save = Save(step=20, world=3, target=1024)
            ranks = chance.sample(range(3), 3)
            try:
                manifests = [save.write_objects(store, rank) for rank in ranks]
                for manifest in manifests:
                    put_manifest(store, manifest)
            except Killed:
                store.faults = []
                complete = all(save.prefix + manifest_name(rank, 3) in store.objects for rank in range(3))
                assert newest(store) == (str(save.name) if complete else "000000010-0001-0000")
                at += 1
                continue
            break
        assert at > 6


def damage_gone(store: FakeStore, save: Save, key: str) -> None:
    del store.objects[key]


def damage_short(store: FakeStore, save: Save, key: str) -> None:
    store.objects[key] = store.objects[key][:-1]


def damage_long(store: FakeStore, save: Save, key: str) -> None:
    store.objects[key] += b"\0"


@pytest.mark.parametrize("damage", [damage_gone, damage_short, damage_long])
def test_an_object_that_is_gone_or_cut_unmakes_a_whole(damage: object) -> None:
    """Any one of them, seen without reading it; restore goes to the one before, `ls` says which."""
    count = len(Save(step=20).write(FakeStore())[0].objects)
    for index in range(count):
        store, save = FakeStore(), Save(step=20)
        Save(step=10).write(store)
        manifests = save.write(store)
        key = manifests[0].object_key(index)
        damage(store, save, key)  # type: ignore[operator]
        assert newest(store) == "000000010-0001-0000"
        for deep in (True, False):
            listed = list_checkpoints(store, "run", deep=deep)
            assert [line.status for line in listed] == ["damaged", "complete"]
            assert manifests[0].objects[index].name in listed[0].reason


def test_a_damaged_manifest_unmakes_a_whole() -> None:
    """Its own CRC says so; the caller is told which and why."""
    store, save = FakeStore(), Save(step=20)
    Save(step=10).write(store)
    save.write(store)
    store.corrupt(save.prefix + manifest_name(1, 2), 300)
    told: list[tuple[str, str]] = []
    found = list(
        whole_checkpoints(store, "run", skipped=lambda name, error: told.append((str(name), str(error))))
    )
    assert [str(whole.name) for whole in found] == ["000000010-0001-0000"]
    assert told[0][0] == str(save.name)
    assert "00001-of-00002.json: damaged" in told[0][1]
    assert [line.status for line in list_checkpoints(store, "run", deep=True)] == ["damaged", "complete"]


def test_a_manifest_of_another_place_is_not_believed() -> None:
    """Copied from another run, or another step: it says itself whose it is."""
    for other in (Save(run_id="run-2", step=20), Save(step=21), Save(step=20, attempt=2)):
        store, save = FakeStore(), Save(step=20)
        save.write(store)
        for manifest in other.write(FakeStore()):
            name = save.prefix + manifest_name(manifest.rank, 2)
            store.put(name, memoryview(encode_manifest(manifest)))
        assert find_whole(store, "run") is None


def test_manifests_of_two_worlds_are_not_mixed() -> None:
    """A set that is complete for one of them is no proof."""
    store, save = FakeStore(), Save(step=20)
    save.write(store)
    Save(step=20, world=3).write_rank(store, 0)
    assert find_whole(store, "run") is None
    assert "manifests of jobs of 2 and 3 ranks" in list_checkpoints(store, "run", deep=True)[0].reason


def test_a_reference_counts_only_while_its_object_is_there() -> None:
    """Unchanged tensors lie in an earlier checkpoint of the attempt."""
    store, base = FakeStore(), Save(step=10)
    manifests = base.write(store)
    Save(step=20, save=1, base=manifests).write(store)
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.name.step == 20
    base_bytes = sum(manifest.nbytes for manifest in manifests)
    assert whole.written < base_bytes / 4
    assert whole.nbytes == whole.written + base_bytes
    del store.objects[manifests[0].object_key(0)]
    assert newest(store) == ""
    assert "object 000000010-0001-0000/" in list_checkpoints(store, "run", deep=True)[0].reason


@pytest.mark.parametrize("number", FOREIGN)
def test_no_restore_goes_back_behind_a_checkpoint_of_another_format(number: int | None) -> None:
    """Another version run by mistake must not train from an old step: it stops, and names what reads the newest."""
    store = FakeStore()
    Save(step=10).write(store)
    Save(step=20).write_foreign(store, number)
    with pytest.raises(UnsupportedFormatError, match=FOREIGN[number]):
        find_whole(store, "run")
    chosen = find_whole(store, "run", step=10)
    assert chosen is not None
    assert [line.status for line in list_checkpoints(store, "run")] == ["unsupported", "complete"]


def test_a_lower_level_is_restored_only_when_asked_for() -> None:
    """It lacks the optimizer's moments."""
    store = FakeStore()
    Save(step=10).write(store)
    Save(step=20, level="weights").write(store)
    assert newest(store) == "000000010-0001-0000"
    low = find_whole(store, "run", levels=("full", "weights"))
    assert low is not None
    assert low.level == "weights"


def test_its_bytes_are_those_of_all_ranks() -> None:
    """Two ranks' objects, each counted once."""
    store = FakeStore()
    manifests = Save(world=2).write(store)
    whole = find_whole(store, "run")
    assert whole is not None
    assert all(manifest.nbytes for manifest in manifests)
    assert whole.nbytes == sum(manifest.nbytes for manifest in manifests)
    assert whole.nbytes == sum(
        len(data) for key, data in store.objects.items() if key.endswith("safetensors")
    )


def test_a_checkpoint_that_goes_away_while_it_is_read_is_passed_over() -> None:
    """A prune was faster; the next older one is taken."""
    store, save = FakeStore(), Save(step=20)
    Save(step=10).write(store)
    save.write(store)
    folders = scan(store, "run")
    found = whole_checkpoints(store, "run")
    assert [str(folder.name) for folder in folders] == ["000000020-0001-0000", "000000010-0001-0000"]
    assert next(found).name.step == 20

    def pruned(request: Request) -> None:
        if request.verb == "get":
            store.objects.pop(save.prefix + manifest_name(0, 2), None)

    assert newest(CalledStore(store, pruned)) == "000000010-0001-0000"


def test_a_store_that_fails_is_no_reason_to_go_back() -> None:
    """Unreachable is not damaged: restore must not train from an old step because of a hiccup."""
    store = FakeStore()
    Save(step=10).write(store)
    Save(step=20).write(store)
    store.faults = [Fault(1, ("get",))]
    store.calls.clear()
    with pytest.raises(UnavailableError):
        find_whole(store, "run")


def test_foreign_files_are_in_nobodys_way() -> None:
    """Beside checkpoints and inside them."""
    store, save = FakeStore(), Save()
    save.write(store)
    for key in (
        "run/checkpoints/latest/x",
        "run/checkpoints/README",
        save.prefix + "notes.txt",
        "other/x",
        "top",
    ):
        store.put(key, memoryview(b"x"))
    assert newest(store) == str(save.name)
    assert [line.status for line in list_checkpoints(store, "run")] == ["complete"]
    assert list_runs(store) == ["run"]


def test_a_marker_that_lies_is_not_believed() -> None:
    """Damaged, it is a damaged checkpoint's; the restore never asked it."""
    store, save = FakeStore(), Save()
    save.write(store)
    store.corrupt(save.prefix + MARKER, 40)
    assert newest(store) == str(save.name)
    assert list_checkpoints(store, "run", deep=True)[0].status == "complete"


def test_a_manifest_that_names_what_another_rank_wrote_is_refused() -> None:
    """Each rank's objects are in its own folder."""
    store, save = FakeStore(), Save()
    first, second = save.write(store)
    put_manifest(store, replace(second, objects=first.objects))
    with pytest.raises(CheckpointError, match="not in the directory of rank 1 of 2"):
        next(whole_checkpoints(store, "run", skipped=_raise))


def _raise(name: CheckpointName, error: CheckpointError) -> None:
    raise error
