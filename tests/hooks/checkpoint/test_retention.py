"""What stays, what goes, and that a death between any two deletions leaves nothing that looks whole and is not."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from spotguard.agent.config import parsers
from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.catalog import find_whole, scan, whole_checkpoints
from spotguard.hooks.checkpoint.format.keys import MARKER, CheckpointName, manifest_name
from spotguard.hooks.checkpoint.format.manifest import LEVELS, Level
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.checkpoint.retention import CheckedCheckpoints, Keep, plan_pruning
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.errors import UnavailableError, UsageError
from spotguard.providers.stores.file import FileStore
from tests.fakes.checkpoint import FOREIGN, Save
from tests.fakes.commit import put_manifest
from tests.fakes.pruned import prune
from tests.fakes.store import FakeStore, Fault, Killed
from tests.tiers import few_fast


def steps(store: FakeStore) -> list[int]:
    """The steps of all folders that hold anything, newest first."""
    return [folder.name.step for folder in scan(store, "run")]


def sound(store: FakeStore) -> None:
    """Whatever the catalog calls whole is whole to the last byte."""
    for whole in whole_checkpoints(store, "run", levels=LEVELS):
        assert verify(store, whole) == []
    for line in list_checkpoints(store, "run"):
        deep = [each for each in list_checkpoints(store, "run", deep=True) if each.name == line.name]
        assert line.status != "complete" or deep[0].status == "complete"


def many(*numbers: int) -> FakeStore:
    """Whole checkpoints of these steps in one attempt."""
    store = FakeStore()
    for save, step in enumerate(numbers):
        Save(step=step, save=save).write(store)
    return store


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [40]), (2, [40, 30]), (3, [40, 30, 20]), (9, [40, 30, 20, 10])]
)
def test_the_newest_stay(keep: int, left: list[int]) -> None:
    """As many as were asked for; all else is gone to the last key."""
    store = many(10, 20, 30, 40)
    gone = prune(store, "run", keep=keep, attempt=1)
    assert [name.step for name in gone] == sorted({10, 20, 30, 40} - set(left))
    assert steps(store) == left
    assert len(store.objects) == len(many(*left).objects)
    sound(store)


def test_a_run_that_is_finished_again_and_again_keeps_its_older_steps() -> None:
    """Each start saves the last step. What one attempt saves twice, such as its best weights behind the last step, counts twice."""
    store = many(10, 20, 30, 30)
    prune(store, "run", keep=4, attempt=1)
    assert steps(store) == [30, 30, 20, 10]
    for attempt in (2, 3):
        Save(step=30, attempt=attempt).write(store)
    prune(store, "run", keep=3, attempt=3)
    assert [(each.name.step, each.name.attempt) for each in scan(store, "run")] == [(30, 3), (20, 1), (10, 1)]
    sound(store)


@pytest.mark.parametrize("keep", [0, -1])
def test_to_keep_none_is_refused(keep: int) -> None:
    """The last good one is never deleted, not even when asked."""
    store = many(10)
    with pytest.raises(UsageError, match=f"keep {keep} would delete the last good checkpoint; use 1 or more"):
        prune(store, "run", keep=keep)
    assert steps(store) == [10]


def test_only_whole_ones_count() -> None:
    """A newer one that is damaged or under way is no reason to delete the good one before it."""
    store = many(10, 20)
    damaged = Save(step=30, save=2)
    store.delete([damaged.write(store)[0].object_key(0)])
    Save(step=40, save=3).write_rank(store, 0)
    prune(store, "run", keep=1, attempt=1)
    assert steps(store) == [40, 30, 20]
    sound(store)


def test_nothing_whole_nothing_deleted() -> None:
    """There may be somebody who can repair it."""
    store = FakeStore()
    for step in (10, 20):
        Save(step=step).write_rank(store, 0)
    before = dict(store.objects)
    assert prune(store, "run", keep=1, attempt=1) == []
    assert store.objects == before


def test_leftovers_go_once_something_newer_is_whole() -> None:
    """Of dead attempts and of given-up saves of this one; what is newer than the newest whole one stays."""
    store = FakeStore()
    Save(attempt=1, step=90).write_rank(store, 0)
    Save(attempt=2, step=40).write_objects(store, 0)
    Save(attempt=2, step=50, save=1).write(store)
    under_way = Save(attempt=2, step=60, save=2)
    under_way.write_objects(store, 0)
    prune(store, "run", keep=3, attempt=2)
    assert [(line.name.attempt, line.name.step) for line in list_checkpoints(store, "run")] == [
        (2, 60),
        (2, 50),
    ]


def test_a_newer_attempt_fences_an_older_one() -> None:
    """A zombie deletes nothing once the next start has claimed its number, or saved under it."""
    store = many(10, 20, 30)
    claim_attempt(store, "run", {})
    claimed = claim_attempt(store, "run", {})
    before = dict(store.objects)
    assert prune(store, "run", keep=1, attempt=claimed - 1) == []
    assert store.objects == before
    store = many(10, 20, 30)
    Save(attempt=5, step=20).write_rank(store, 0)
    assert prune(store, "run", keep=1, attempt=4) == []
    assert steps(store) == [20, 30, 20, 10]
    assert prune(store, "run", keep=1, attempt=5) != []


def test_claims_are_looked_for_after_the_listing() -> None:
    """So that whoever claims later also lists later, and finds what is kept here."""
    store = many(10, 20)
    store.calls.clear()
    plan_pruning(store, "run", keep=1, attempt=1)
    assert [key for verb, key in store.calls if verb == "list"] == ["run/checkpoints/", "run/attempts/"]


def test_referred_objects_stay() -> None:
    """The objects of an earlier checkpoint, without its manifests: it is no checkpoint any more, and in no list."""
    store, base = FakeStore(), Save(step=10)
    manifests = base.write(store)
    nbytes = sum(manifest.nbytes for manifest in manifests)
    Save(step=20, save=1, base=manifests).write(store)
    sizes = [line.nbytes for line in list_checkpoints(store, "run")]
    assert sizes[1] == nbytes < sizes[0]
    prune(store, "run", keep=1, attempt=1)
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.name.step == 20
    assert verify(store, whole) == []
    for deep in (False, True):
        assert (
            [line.nbytes for line in list_checkpoints(store, "run", deep=deep)] == [whole.nbytes] == sizes[:1]
        )
    left = [key for key in store.objects if key.startswith(base.prefix)]
    assert sorted(left) == sorted(
        manifest.object_key(i) for manifest in manifests for i in range(len(manifest.objects))
    )
    assert plan_pruning(store, "run", keep=1).departing == (), "nothing of it is left to delete"
    sound(store)
    Save(step=30, save=2).write(store)
    prune(store, "run", keep=1, attempt=1)
    assert steps(store) == [30]
    assert not [key for key in store.objects if key.startswith(base.prefix)]


def fetched(store: FakeStore) -> list[str]:
    """The manifests that were read since the last time, each by its step."""
    keys = [key for verb, key in store.calls if verb == "get" and key.endswith("of-00002.json")]
    store.calls.clear()
    return [key.split("/")[2][:9].lstrip("0") for key in keys]


def test_a_checkpoint_is_merged_once_and_held_against_every_listing() -> None:
    """A run that keeps milestones would else read all of them again at each commit."""
    store, known = many(10, 20, 30, 40), CheckedCheckpoints()
    plan_pruning(store, "run", keep=2, every=10, known=known)
    assert sorted(fetched(store)) == sorted(["10", "20", "30", "40"] * 2)
    assert len(plan_pruning(store, "run", keep=2, every=10, known=known).kept) == 4
    assert fetched(store) == []
    gone = next(key for key in store.objects if "/000000020-" in key and key.endswith(".safetensors"))
    del store.objects[gone]
    pruning = plan_pruning(store, "run", keep=2, every=10, known=known)
    assert [name.step for name in pruning.kept] == [40, 30, 10]
    assert set(fetched(store)) == {"20"}


def test_a_checkpoint_whose_objects_elsewhere_went_is_merged_again() -> None:
    """Its own folder is as it was: what it refers to is held against the listing too."""
    store, base, known = FakeStore(), Save(step=10), CheckedCheckpoints()
    manifests = base.write(store)
    Save(step=20, save=1, base=manifests).write(store)
    assert plan_pruning(store, "run", keep=1, known=known).checked == CheckpointName(1, 20, 1)
    key = manifests[0].object_key(0)
    data = store.objects.pop(key)
    assert plan_pruning(store, "run", keep=1, known=known).checked is None
    store.objects[key] = data[:-1]
    assert plan_pruning(store, "run", keep=1, known=known).checked is None
    store.objects[key] = data
    assert plan_pruning(store, "run", keep=1, known=known).checked == CheckpointName(1, 20, 1)


def test_objects_that_manifests_of_a_running_save_name_stay() -> None:
    store, base = FakeStore(), Save(step=10)
    manifests = base.write(store)
    Save(step=20, save=1).write(store)
    Save(step=30, save=2, base=manifests).write_rank(store, 0)
    prune(store, "run", keep=1, attempt=1)
    assert manifests[0].object_key(0) in store.objects
    assert manifests[1].object_key(0) not in store.objects


@pytest.mark.parametrize("level", ["weights", "partial-extras"])
def test_a_lower_level_is_no_last_good(level: Level) -> None:
    """It does not count as one of those kept; older than a full one it goes, newer it stays."""
    store = many(10)
    Save(step=20, save=1, level=level).write(store)
    prune(store, "run", keep=1, attempt=1)
    assert steps(store) == [20, 10]
    Save(step=30, save=2).write(store)
    prune(store, "run", keep=1, attempt=1)
    assert steps(store) == [30]


def test_weights_that_were_committed_early_go_when_the_full_one_beside_them_is_there() -> None:
    """They cost no other its place. Their objects stay, for it refers to them, and go with it."""
    store = many(10, 15)
    early = Save(step=20, save=2, level="weights")
    manifests = early.write(store, marker=False)
    prune(store, "run", keep=2, attempt=1)
    assert steps(store) == [20, 15, 10]
    Save(step=20, save=3, base=manifests).write(store)
    assert prune(store, "run", keep=2, attempt=1) == [CheckpointName(1, 10, 0), early.name]
    assert [(line.name.step, line.level) for line in list_checkpoints(store, "run")] == [
        (20, "full"),
        (15, "full"),
    ]
    sound(store)
    Save(step=30, save=4).write(store)
    Save(step=40, save=5).write(store)
    prune(store, "run", keep=2, attempt=1)
    assert steps(store) == [40, 30]


@pytest.mark.parametrize("full", [(), (10, 11)])
def test_no_more_checkpoints_of_a_lower_level_stay_than_of_the_full_one(full: tuple[int, ...]) -> None:
    """A run whose optimizer is not saved makes no others: its disk does not fill up. The newest full ones stay."""
    store = many(*full) if full else FakeStore()
    for save in range(5):
        Save(step=20 + save, save=2 + save, level="weights").write(store)
        prune(store, "run", keep=2, attempt=1)
    assert steps(store) == [24, 23, *reversed(full)]
    # One that is being written stays, and so does what it is written beside.
    Save(step=30, save=9, level="weights").write_objects(store, 0)
    prune(store, "run", keep=2, attempt=1)
    assert steps(store) == [30, 24, 23, *reversed(full)]


def test_a_partial_extras_checkpoint_loses_its_place_to_no_weights_one() -> None:
    """A restore takes it before a newer one without moments: each level has its own places."""
    store = many(10)
    Save(step=200, save=1, level="partial-extras").write(store)
    for save, step in enumerate((210, 220, 230), 2):
        Save(step=step, save=save, level="weights").write(store)
        prune(store, "run", keep=1, attempt=1)
        assert steps(store) == [step, 200, 10]
    Save(step=240, save=9, level="partial-extras").write(store)
    prune(store, "run", keep=1, attempt=1)
    assert steps(store) == [240, 230, 10]


WHY = "the loss is nan since step 3"


def story(*suspect: bool) -> FakeStore:
    """Whole checkpoints of steps 10, 20 …, of which some are suspect."""
    store = FakeStore()
    for save, each in enumerate(suspect):
        Save(step=10 * (save + 1), save=save, suspect={save % 2: WHY} if each else {}).write(store)
    return store


@pytest.mark.parametrize(
    ("suspect", "left"),
    [
        ((False, False, False, True), [40, 30, 20]),
        ((False, False, True, True, True, True), [60, 50, 20, 10]),
        ((False, True, True, False), [40, 10]),
        ((True, False, True, False, True), [50, 40, 20]),
        ((True, True, True, True), [40, 30]),
    ],
)
def test_suspect_ones_do_not_count(suspect: tuple[bool, ...], left: list[int]) -> None:
    """As many of them stay as of the good ones, while none of these is newer."""
    store = story(*suspect)
    prune(store, "run", keep=2, attempt=1)
    assert steps(store) == left
    sound(store)


@pytest.mark.parametrize("keep", few_fast([2, 1, 3]))
def test_after_any_prunes_the_newest_good_one_is_there(keep: int) -> None:
    """Whatever comes between: suspect ones, lower levels, remains, restarts, a prune that is killed. And no run grows without
    end: of each kind at most as many stay.
    """
    draw = random.Random(keep)
    for _ in range(40):
        store, good, attempt = FakeStore(), None, 1
        for save in range(draw.randint(5, 30)):
            attempt += draw.random() < 0.1
            kind = draw.choice(["good", "suspect", "suspect", "weights", "torn"])
            level: Level = "weights" if kind == "weights" else "full"
            suspect = {draw.randrange(2): WHY} if kind == "suspect" or draw.random() < 0.1 else {}
            each = Save(attempt=attempt, step=save + 1, save=save, level=level, suspect=suspect)
            if kind == "torn":
                each.write_rank(store, 0)
            else:
                each.write(store, marker=draw.random() < 0.8)
                good = each.name if level == "full" and not suspect else good
            if draw.random() < 0.6:
                planned = plan_pruning(store, "run", keep=keep, attempt=attempt)
                for keys in [*planned.steps()][: draw.randint(0, 3)]:
                    store.delete(keys)
        prune(store, "run", keep=keep, attempt=attempt)
        whole = [*whole_checkpoints(store, "run", levels=LEVELS)]
        of_kind = Counter((each.level, bool(each.suspect)) for each in whole)
        assert max(of_kind.values(), default=0) <= keep
        names = {each.name for each in whole if each.level == "full" and not each.suspect}
        assert good is None or max(names) == good
        sound(store)


def test_a_milestone_is_not_suspect() -> None:
    """The next one of its interval is taken instead."""
    store = story(False, True, False, False, False)
    prune(store, "run", keep=1, every=20, attempt=1)
    assert steps(store) == [50, 40, 30]


def test_a_suspicion_costs_retention_no_request() -> None:
    """Of each checkpoint the manifests are read once by a process, suspect or not, and one before it is deleted."""
    store, known = story(False, False, True, True), CheckedCheckpoints()
    plan_pruning(store, "run", keep=2, attempt=1, known=known)
    for save in range(4, 10):
        Save(step=10 * (save + 1), save=save, suspect={0: WHY}).write(store)
        store.calls.clear()
        planned = plan_pruning(store, "run", keep=2, attempt=1, known=known)
        assert len(planned.departing) == 1
        assert len(fetched(store)) == 2 + 1
        prune(store, "run", keep=2, attempt=1)


@pytest.mark.parametrize("number", FOREIGN)
@pytest.mark.parametrize("keep", [1, 2])
def test_a_checkpoint_of_another_format_loses_nothing(keep: int, number: int | None) -> None:
    """It may refer to objects of its attempt whose own checkpoint is gone, which nobody here can read."""
    store, base = FakeStore(), Save(step=5)
    manifests = base.write(store, marker=False)
    for rank in range(2):
        del store.objects[base.prefix + manifest_name(rank, 2)]
    Save(step=15, save=1, base=manifests).write_foreign(store, number)
    theirs = dict(store.objects)
    for save, step in enumerate((10, 20, 30), 2):
        Save(attempt=2, step=step, save=save).write(store)
    prune(store, "run", keep=keep, attempt=2)
    assert {key: store.objects.get(key) for key in theirs} == theirs
    assert steps(store) == [*[30, 20, 10][:keep], 15, 5]


@pytest.mark.parametrize("number", FOREIGN)
def test_a_run_whose_checkpoints_are_all_of_another_format_loses_nothing(number: int | None) -> None:
    store = FakeStore()
    for step in (10, 20, 30):
        Save(step=step, save=step).write_foreign(store, number)
    before = dict(store.objects)
    assert prune(store, "run", keep=1, attempt=1) == []
    assert store.objects == before


def test_foreign_files_are_not_deleted() -> None:
    """Notes that somebody keeps beside a checkpoint."""
    store, old = many(10, 20), Save(step=10)
    for key in (old.prefix + "notes.txt", "run/checkpoints/keep-me/x", "run/attempts/0001.json", "other/x"):
        store.put(key, memoryview(b"mine"))
    prune(store, "run", keep=1)
    assert sum(data == b"mine" for data in store.objects.values()) == 4
    assert steps(store) == [20, 10]


@pytest.mark.parametrize(
    ("keep", "every", "left"),
    [
        (1, 100, [420, 310, 205, 100]),
        (2, 100, [420, 390, 310, 205, 100]),
        (1, 200, [420, 205]),
        (9, 100, [420, 390, 310, 250, 205, 199, 100, 40]),
        (1, 500, [420]),
    ],
)
def test_one_older_checkpoint_of_every_so_many_steps_stays(keep: int, every: int, left: list[int]) -> None:
    """The first at or after each multiple; and so it is still when the next ones have come."""
    store = many(40, 100, 199, 205, 250, 310, 390, 420)
    prune(store, "run", keep=keep, every=every, attempt=1)
    assert steps(store) == left
    sound(store)
    for save, step in enumerate((480, 500, 505), 20):
        Save(step=step, save=save).write(store)
        prune(store, "run", keep=keep, every=every, attempt=1)
    assert set(left[keep:]) <= set(steps(store))


def test_a_milestone_is_whole_full_and_on_the_way_that_was_gone() -> None:
    """Else the next one is taken; who went back to 150 left a branch behind."""
    store = FakeStore()
    damaged = Save(step=100).write(store)[0].object_key(0)
    store.delete([damaged])
    Save(step=110, save=1, level="weights").write(store)
    Save(step=120, save=2).write(store)
    Save(step=200, save=3).write(store)
    Save(attempt=2, step=160).write(store)
    Save(attempt=2, step=210, save=1).write(store)
    Save(attempt=2, step=300, save=2).write(store)
    prune(store, "run", keep=1, every=100, attempt=2)
    assert [(line.name.attempt, line.name.step) for line in list_checkpoints(store, "run")] == [
        (2, 300),
        (2, 210),
        (1, 120),
    ]


def test_objects_that_a_milestone_refers_to_stay() -> None:
    """Its objects in an earlier folder, though that is no checkpoint any more."""
    store = FakeStore()
    base = Save(step=90).write(store)
    Save(step=100, save=1, base=base).write(store)
    Save(step=150, save=2).write(store)
    prune(store, "run", keep=1, every=100, attempt=1)
    assert [line.name.step for line in list_checkpoints(store, "run") if line.status == "complete"] == [
        150,
        100,
    ]
    sound(store)


@pytest.mark.parametrize(
    "text", ["1", "3", "12+5000", "0", "-1", "", "3+", "+3", "3+0", "3 + 1", "2.5", "3+1+1", "\u0663"]
)
def test_the_agent_and_the_training_process_read_alike(text: str) -> None:
    """What `--keep` takes is what `register` finds."""
    try:
        said = str(parsers.keep("--keep", text))
    except UsageError:
        with pytest.raises(ValueError, match="^" + re.escape(text)):
            Keep.of(text)
    else:
        found = Keep.of(said)
        assert text == (f"{found.newest}+{found.every}" if found.every else f"{found.newest}")


def everything() -> FakeStore:
    """Old whole ones, leftovers, references, a save under way."""
    store = FakeStore()
    Save(attempt=1, step=50, world=1).write(store)
    Save(attempt=1, step=60, save=1).write_rank(store, 1)
    base = Save(attempt=2, step=55, save=0).write(store)
    Save(attempt=2, step=60, save=1, base=base).write(store)
    Save(attempt=2, step=70, save=2, world=3).write(store, marker=False)
    Save(attempt=2, step=80, save=3).write(store)
    Save(attempt=2, step=90, save=4).write_objects(store, 0)
    return store


@pytest.mark.parametrize(
    ("keep", "after"), few_fast([(1, False), (1, True), (2, False), (2, True), (3, False), (3, True)], 3)
)
def test_killed_at_any_deletion(keep: int, after: bool) -> None:
    """The newest stays what it was, nothing that is not whole looks whole, and the next prune ends the work."""
    done = everything()
    prune(done, "run", keep=keep, attempt=2)
    deaths = 0
    while True:
        store = everything()
        store.calls.clear()
        store.faults = [Fault(deaths, ("delete",), after=after, error=Killed)]
        try:
            prune(store, "run", keep=keep, attempt=2)
        except Killed:
            store.faults = []
            whole = find_whole(store, "run")
            assert whole is not None
            assert whole.name == CheckpointName(2, 80, 3)
            sound(store)
            prune(store, "run", keep=keep, attempt=2)
            assert store.objects == done.objects
            deaths += 1
            continue
        break
    assert deaths > 5


def test_the_marker_goes_first_then_manifests_then_objects() -> None:
    """Of all that goes: one of the doomed may refer to the objects of another."""
    store = many(10, 20, 30)
    store.calls.clear()
    prune(store, "run", keep=1, attempt=1)
    deleted = [key for verb, key in store.calls if verb == "delete"]
    kinds = ["marker" if key.endswith(MARKER) else key.rpartition(".")[2] for key in deleted]
    assert kinds == ["marker"] * 2 + ["json"] * 4 + ["safetensors"] * (len(kinds) - 6)
    assert len(kinds) > 6


def test_a_store_that_fails_while_deciding_deletes_nothing() -> None:
    """Unreachable is not damaged."""
    store = many(10, 20)
    before = dict(store.objects)
    store.calls.clear()
    store.faults = [Fault(0, ("get",))]
    with pytest.raises(UnavailableError):
        prune(store, "run", keep=1, attempt=1)
    assert store.objects == before


def test_a_folder_is_left_clean(tmp_path: Path) -> None:
    """On a disk nothing is left of a pruned checkpoint, not even its folder or a dead writer's temporary."""
    store = FileStore(tmp_path)
    old = Save(step=10)
    old.write(store)
    (tmp_path / old.prefix / "00000-of-00002/.put-1-dead").write_bytes(b"half")
    Save(step=20, save=1).write(store)
    prune(store, "run", keep=1, attempt=1)
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["000000020-0001-0001"]
    put_manifest(store, Save(step=30, save=2).write_objects(store, 0))
