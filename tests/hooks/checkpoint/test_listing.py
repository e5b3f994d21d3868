"""The list that `spotguard ls` shows of a store: the status of each checkpoint, from as few requests as it takes."""

from __future__ import annotations

import pytest

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.format.keys import MARKER, manifest_name
from spotguard.hooks.checkpoint.listing import list_checkpoints, list_runs
from tests.fakes.called import CalledStore, Request
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore


def test_ls_reads_one_marker_where_all_is_well() -> None:
    """And no manifest, however many ranks there were."""
    store = FakeStore()
    Save(world=8).write(store)
    store.calls.clear()
    (line,) = list_checkpoints(store, "run")
    assert (line.status, line.world, line.level, line.kind, line.created, line.marked) == (
        "complete", 8, "full", "background", 2.0, True,
    )  # fmt: skip
    assert [verb for verb, _ in store.calls] == ["list", "get"]
    assert line.nbytes == sum(len(data) for key, data in store.objects.items() if key.endswith("safetensors"))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("deep", [False, True])
def test_a_marker_without_a_manifest_marks_nothing(rank: int, deep: bool) -> None:
    """Any rank's, the first's too; sizes and objects of the marker agree all the same."""
    store, save = FakeStore(), Save()
    save.write(store)
    store.delete([save.prefix + manifest_name(rank, 2)])
    (line,) = list_checkpoints(store, "run", deep=deep)
    assert (line.status, line.marked) == ("partial", True)
    assert line.reason == f"1 of 2 manifests are missing (0000{rank}-of-00002.json is the first)"
    assert find_whole(store, "run") is None


def test_a_marker_that_vanishes_while_it_is_read_ends_no_listing() -> None:
    """A prune was faster: the line says what is known, and the others are listed."""
    store, save = FakeStore(), Save(step=20)
    Save(step=10).write(store)
    save.write(store)

    def pruned(request: Request) -> None:
        if request.verb == "get":
            store.objects.pop(save.prefix + MARKER, None)

    lines = list_checkpoints(CalledStore(store, pruned), "run")
    assert [(line.name.step, line.status) for line in lines] == [(20, "partial"), (10, "complete")]
    assert MARKER in lines[0].reason


def test_ls_tells_partial_from_damaged() -> None:
    """A save under way is no damage."""
    store = FakeStore()
    Save(step=10).write(store)
    Save(step=20).write_rank(store, 0)
    Save(step=30).write_objects(store, 0)
    lines = list_checkpoints(store, "run")
    assert [(line.name.step, line.status) for line in lines] == [
        (30, "partial"),
        (20, "partial"),
        (10, "complete"),
    ]
    assert lines[0].reason == "it has no manifest"
    assert lines[1].reason == "1 of 2 manifests are missing (00001-of-00002.json is the first)"


def test_directories_that_pruning_has_begun_with_are_not_listed() -> None:
    """Their manifests went first. The objects that a newer checkpoint uses stay for as long as that."""
    store, base = FakeStore(), Save(step=20)
    Save(step=10).write_objects(store, 0)
    manifests = base.write(store)
    Save(step=30, save=1, base=manifests).write(store)
    for manifest in manifests:
        del store.objects[manifest.key]
    Save(step=40, save=2).write_objects(store, 0)
    assert [(line.name.step, line.status) for line in list_checkpoints(store, "run")] == [
        (40, "partial"),
        (30, "complete"),
    ]


def test_checkpoint_that_refers_to_a_lost_object_is_damaged_although_it_is_marked() -> None:
    """Everything in its own directory is as its marker says."""
    store, base = FakeStore(), Save(step=10)
    manifests = base.write(store)
    Save(step=20, save=1, base=manifests).write(store)
    assert [line.status for line in list_checkpoints(store, "run")] == ["complete", "complete"]
    del store.objects[manifests[0].object_key(0)]
    newest, first = list_checkpoints(store, "run")
    assert (newest.marked, newest.status, first.status) == (True, "damaged", "damaged")
    assert f"object {base.name}/" in newest.reason


def test_a_run_that_has_only_begun_is_a_run() -> None:
    """It has claimed an attempt and saved nothing yet."""
    store = FakeStore()
    claim_attempt(store, "begun", {})
    Save(run_id="saved").write(store)
    assert list_runs(store) == ["begun", "saved"]
    assert list_checkpoints(store, "begun") == []


def test_somebody_else_s_folders_are_no_runs() -> None:
    """A bucket may hold what no run of ours could be called: it is left alone, and no error."""
    store = FakeStore()
    Save().write(store)
    for key in ("my model/checkpoints/x", "-rf/checkpoints/x", "/attempts/0001.json"):
        store.objects[key] = b"x"
    assert list_runs(store) == ["run"]
