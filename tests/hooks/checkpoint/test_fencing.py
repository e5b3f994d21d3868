"""A process that was believed dead, and goes on saving while the next start of the job trains.

It can neither overwrite, for no two saves share a key; nor be preferred, for the newer attempt beats the higher step; nor
delete, for who prunes looks for newer claims first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.hooks.checkpoint.format.keys import CheckpointName, checkpoints_prefix
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.cases import cases
from tests.fakes.checkpoint import Save
from tests.fakes.commit import mark_alone, put_manifest
from tests.fakes.pruned import prune
from tests.fakes.store import FakeStore
from tests.fakes.turns import Turns
from tests.servers.moto import Moto

SEEDS = range(60)
#: Small, so that a seed has a chance at every pair of requests.
TENSORS = {"model.embed.weight": ("float32", (8, 4)), "optimizer.0.step": ("float32", ())}


def commit(store: BlobStore, save: Save) -> None:
    """As a rank does it: objects, manifest, marker."""
    manifest = save.write_objects(store, 0)
    put_manifest(store, manifest)
    mark_alone(store, manifest, created=1.0)


def saves(attempt: int, *steps: int) -> Iterator[Save]:
    for number, step in enumerate(steps):
        yield Save(attempt=attempt, step=step, save=number, world=1, tensors=TENSORS)


@dataclass
class Start:
    """One start of the job: claims, restores, saves and prunes."""

    steps: int
    attempt: int = 0
    chosen: WholeCheckpoint | None = None
    #: What a restore that reads every byte of what it chose found wrong.
    damage: list[object] = field(default_factory=list)

    def __call__(self, store: BlobStore) -> None:
        self.attempt = claim_attempt(store, "run", {})
        self.chosen = find_whole(store, "run")
        assert self.chosen is not None, "the last good checkpoint was deleted"
        self.damage += verify(store, self.chosen)
        begin = self.chosen.name.step
        for save in saves(self.attempt, *range(begin + 1, begin + 1 + self.steps)):
            commit(store, save)
            prune(store, "run", keep=1, attempt=self.attempt)


def zombie(store: BlobStore) -> None:
    """Attempt 1, far ahead in steps, which knows nothing of another."""
    for save in saves(1, 1000, 1001, 1002):
        commit(store, save)
        prune(store, "run", keep=1, attempt=1)


def first_attempt(store: BlobStore) -> None:
    """What is there when the machine is believed dead."""
    assert claim_attempt(store, "run", {}) == 1
    commit(store, Save(attempt=1, step=900, save=9, world=1, tensors=TENSORS))


def attempt_of(key: str) -> int:
    """Whose checkpoint a key lies in; 0 for no checkpoint's."""
    name = CheckpointName.parse(key.removeprefix(checkpoints_prefix("run")).partition("/")[0])
    return name.attempt if name else 0


def fenced(turns: Turns, start: Start) -> None:
    """What must be so in the end, whatever came before what."""
    store = turns.store
    puts = {
        who: {key for name, verb, key in turns.done if name == who and verb.startswith("put")}
        for who in ("zombie", "start")
    }
    assert start.attempt == 2
    # Nothing is overwritten: neither by the other, nor by oneself.
    assert puts["zombie"].isdisjoint(puts["start"])
    written = [key for _, verb, key in turns.done if verb == "put"]
    assert len(written) == len(set(written))
    # Nothing is preferred: what comes latest of attempt 1 is older than all of attempt 2.
    newest = find_whole(store, "run")
    assert newest is not None
    assert newest.name.attempt == 2
    assert verify(store, newest) == []
    # Nothing of the newer attempt is deleted, and nothing at all by a pruning that was decided after its claim.
    deleted = [key for who, verb, key in turns.done if (who, verb) == ("zombie", "delete")]
    assert {attempt_of(key) for key in deleted} <= {1}
    assert start.damage == []


def looks(turns: Turns, who: str) -> Iterator[int]:
    """Where in `done` somebody looked for claims."""
    for at, (name, verb, key) in enumerate(turns.done):
        if name == who and verb == "list" and key == "run/attempts/":
            yield at


@cases("seed", SEEDS)
def test_a_zombie_is_fenced_in_every_order(seed: int) -> None:
    """Both save and prune three times, one request at a time."""
    store = FakeStore()
    first_attempt(store)
    turns, start = Turns(store, seed), Start(3)
    turns.run({"zombie": zombie, "start": start})
    fenced(turns, start)
    claimed = turns.done.index(("start", "put_if_absent", "run/attempts/0002.json"))
    if late := [at for at in looks(turns, "zombie") if at > claimed]:
        after = turns.done[late[0] :]
        assert not [key for who, verb, key in after if (who, verb) == ("zombie", "delete")]


@cases("seed", range(20))
def test_the_last_of_three_claims_is_preferred(seed: int) -> None:
    """Two starts at the same moment, beside a zombie: three numbers, one order."""
    store = FakeStore()
    first_attempt(store)
    turns, starts = Turns(store, seed), (Start(2), Start(2))
    turns.run({"zombie": zombie, "one": starts[0], "two": starts[1]})
    assert {start.attempt for start in starts} == {2, 3}
    newest = find_whole(store, "run")
    assert newest is not None
    assert newest.name.attempt == 3
    assert verify(store, newest) == []
    assert max(starts, key=lambda start: start.attempt).damage == []
    written = [key for _, verb, key in turns.done if verb == "put"]
    assert len(written) == len(set(written))


@pytest.mark.parametrize("seed", range(4))
def test_a_zombie_is_fenced_in_s3(seed: int, moto: Moto) -> None:
    """Through boto3, over a real server."""
    store = open_store(f"{moto.fresh()}/some/prefix")
    first_attempt(store)
    turns, start = Turns(store, seed), Start(2)
    turns.run({"zombie": zombie, "start": start})
    fenced(turns, start)


@pytest.fixture(params=["fake", "moto"])
def anywhere(request: pytest.FixtureRequest) -> BlobStore:
    if request.param == "fake":
        return FakeStore()
    moto: Moto = request.getfixturevalue("moto")
    return open_store(f"{moto.fresh()}/some/prefix")


def test_a_commit_that_lands_late_is_not_taken(anywhere: BlobStore) -> None:
    """The zombie's objects were there before the claim; its manifest and marker come after the newer one's first commit."""
    first_attempt(anywhere)
    late = next(saves(1, 1000))
    manifest = late.write_objects(anywhere, 0)
    start = Start(1)
    start(anywhere)
    assert start.chosen is not None
    assert start.chosen.name.step == 900
    ours = find_whole(anywhere, "run")
    put_manifest(anywhere, manifest)
    mark_alone(anywhere, manifest, created=2.0)
    assert find_whole(anywhere, "run") == ours
    before = [info.key for info in anywhere.list("")]
    assert prune(anywhere, "run", keep=1, attempt=1) == []
    assert [info.key for info in anywhere.list("")] == before
    # And the next start goes on from the newer attempt's, not from the higher step.
    again = Start(0)
    again(anywhere)
    assert again.attempt == 3
    assert again.chosen == ours


def test_an_attempt_is_claimed_once(anywhere: BlobStore) -> None:
    """The zombie that claims again (a restore in place) is a newer attempt, and says so by its number."""
    claims: list[Callable[[], int]] = [lambda: claim_attempt(anywhere, "run", {}) for _ in range(3)]
    assert [claim() for claim in claims] == [1, 2, 3]
