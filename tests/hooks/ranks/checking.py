"""What is in a store after a job of several ranks, and what must hold of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.providers.stores.factory import open_store
from tests.hooks.ranks.gang import Gang, Said

#: Steps of an undisturbed run.
STEPS = 10
#: Such runs, by what was played.
_STRAIGHT: dict[tuple[Any, ...], list[Said]] = {}


def straight(gang: Gang, world: int, way: str, folder: Path, **scenario: Any) -> list[Said]:
    """A run in which nothing happens, with its digests after each step. It is played once."""
    key = (world, way, *sorted(scenario.items()))
    if key not in _STRAIGHT:
        said = gang.play(world, way, folder / "straight", digests=True, total=STEPS, **scenario)
        assert [each["ended"] for each in said] == ["at its end"] * world, gang.errors()
        _STRAIGHT[key] = said
    return _STRAIGHT[key]


@contextmanager
def seeded(seed: int, folder: Path) -> Iterator[Path]:
    """A folder for what one of many seeds plays; what fails in it says which one it was."""
    own = folder / str(seed)
    own.mkdir(mode=0o700)
    try:
        yield own
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def newest(store: Path) -> WholeCheckpoint | None:
    """Of any level."""
    return find_whole(open_store(f"file://{store}"), "r", levels=LEVELS)


def outcomes(store: Path) -> dict[str, dict[str, Any]]:
    """What became of notices, by the name of the record in the store."""
    return {path.stem: json.loads(path.read_text()) for path in store.glob("r/outcomes/*.json")}


def marked(store: Path) -> list[str]:
    """The checkpoints that bear a marker."""
    return sorted(path.parent.name for path in store.glob("r/checkpoints/*/COMMIT.json"))


def losses(said: Sequence[Said]) -> dict[int, float]:
    """Of each step, over all ranks."""
    return {int(step): sum(each["losses"][step] for each in said) / len(said) for step in said[0]["losses"]}


def saved_together(gang: Gang, store: Path, said: Sequence[Said]) -> int:
    """All have the same step, which is committed, all leave in order, and nobody is left parked or listening."""
    steps = {each["last"] for each in said}
    assert len(steps) == 1, f"{said}\n{gang.errors()}"
    assert [each["ended"] for each in said] == ["preempted"] * len(said), gang.errors()
    assert [each["threads"] for each in said] == [[]] * len(said)
    whole = newest(store)
    assert whole is not None, gang.errors()
    assert whole.name.step in steps
    assert str(whole.name) == marked(store)[-1]
    return whole.name.step


def an_hour_passes(store: Path) -> None:
    """Saves that killed ranks have announced are out of time: a start waits for none of them."""
    for path in store.glob(f"r/checkpoints/*/{SAVING}"):
        with suppress(FileNotFoundError):  # a rank that has ended it removes it
            then = path.stat().st_mtime - 3600
            os.utime(path, (then, then))


def restores(gang: Gang, world: int, way: str, store: Path, **scenario: Any) -> int:
    """The newest checkpoint is restored, by all ranks, bit for bit as the undisturbed run had it, also where a dead rank's
    extras are missing. Returns its step, 0 where there is none."""
    undisturbed = straight(gang, world, way, store.parent / "undisturbed", **scenario)
    an_hour_passes(store)
    then = gang.play(world, way, store, total=0, **{"env": {"SPOTGUARD_EXTRAS_WORTH": "0"}, **scenario})
    start: int = then[0]["start"]
    for mine, other in zip(then, undisturbed, strict=True):
        assert mine["ended"] == "at its end", gang.errors()
        assert mine["start"] == start
        assert mine["digests"][str(start)] == other["digests"][str(start)], f"step {start}\n{gang.errors()}"
    return start
