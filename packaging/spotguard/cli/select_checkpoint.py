"""Which run and which checkpoint of a store a command means, from the URL and the flags.

An URL may be the store's, a run's folder or the `checkpoints` in it, or a checkpoint's own, as logs and outcomes show it:
what is copied from there works here. Only the last can be known by its looks: a store may lie in a folder `checkpoints`,
or be called as a run could be. Of the others a look at what is there decides.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from spotguard.hooks.arguments import default_store
from spotguard.hooks.checkpoint.catalog import CheckpointFolder, WholeCheckpoint, examine, list_runs, scan
from spotguard.hooks.checkpoint.format.codec import NewerFormatError
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.providers.errors import CheckpointError, UsageError
from spotguard.providers.run_id import is_run_id
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.names import read_place

from .select_agent import checked_run_id
from .start import next_start


@dataclass(frozen=True, slots=True)
class Target:
    store: BlobStore
    #: None: all of them.
    run_id: str | None
    name: CheckpointName | None = None
    step: int | None = None

    def runs(self) -> list[str]:
        """The runs that are meant."""
        return [self.run_id] if self.run_id is not None else list_runs(self.store)

    def the_run(self) -> str:
        """The one run that is meant.

        Raises:
            CheckpointError: there is none, or more than one and none was said.
        """
        if self.run_id is not None:
            return self.run_id
        found = list_runs(self.store)
        if len(found) == 1:
            return found[0]
        if not found:
            raise CheckpointError(f"{self.store.url} holds no run: check the URL, or train with this store")
        raise UsageError(f"{self.store.url} holds several runs: say --run-id with one of {', '.join(found)}")

    def chosen(self) -> tuple[list[CheckpointFolder], list[CheckpointFolder]]:
        """The checkpoints that are meant, newest first, and all of the run beside them.

        Raises:
            CheckpointError: none is there.
        """
        run_id = self.the_run()
        folders = scan(self.store, run_id)
        meant = [folder for folder in folders if self.means(folder.name)]
        if not meant:
            asked = "" if self.name is None and self.step is None else f" {self._said()}"
            there = ", ".join(str(folder.name.step) for folder in folders[:8])
            others = f"there are those of steps {there}" if there else "nothing was saved yet"
            raise CheckpointError(f"run {run_id} in {self.store.url} has no checkpoint{asked}: {others}")
        return meant, folders

    def whole(self) -> WholeCheckpoint:
        """What a restore of those that are meant would take.

        Raises:
            NewerFormatError: a restore would refuse.
            CheckpointError: none is whole; says why the newest is not.
        """
        chosen, folders = self.chosen()
        if self.name is None and self.step is None:
            start = next_start(self.store, self.the_run())
            if start.taken is not None:
                return start.taken
        reasons: list[CheckpointError] = []
        for folder in chosen:
            try:
                return examine(self.store, folder, folders)
            except NewerFormatError:
                raise
            except CheckpointError as error:
                reasons.append(error)
        raise CheckpointError(f"checkpoint {chosen[0].name} is not whole: {reasons[0]}") from reasons[0]

    def means(self, name: CheckpointName) -> bool:
        """Whether this one is among those that are meant."""
        return (self.name is None or name == self.name) and (self.step is None or name.step == self.step)

    def _said(self) -> str:
        return f"of step {self.step}" if self.name is None else str(self.name)


def add_target(parser: argparse.ArgumentParser, *, step: bool) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="a store, a run in it, or one checkpoint (default: SPOTGUARD_STORE, else the folder here)",
    )
    parser.add_argument("--run-id", metavar="NAME", help="only this run")
    if step:
        parser.add_argument("--step", metavar="N", help="the checkpoint of this step (default: the newest)")


def target(arguments: argparse.Namespace) -> Target:
    said = checked_run_id(arguments.run_id)
    step = _step(getattr(arguments, "step", None))
    if not arguments.url:
        # Where `run` saves unless it is told otherwise: the store itself, whatever its name looks like.
        if told := os.environ.get("SPOTGUARD_STORE"):
            return Target(open_store(read_place("SPOTGUARD_STORE", told)), said, step=step)
        return Target(open_store(read_place("the default", default_store(os.getcwd()))), said, step=step)
    store, run_id, name = _place(read_place("URL", arguments.url))
    if said is not None and run_id is not None and said != run_id:
        raise UsageError(f"--run-id {said!r}: the URL names run {run_id}: leave one of them out")
    return Target(store, said or run_id, name, step)


def _place(url: str) -> tuple[BlobStore, str | None, CheckpointName | None]:
    """The store, and where the URL leads into it the run and the checkpoint."""
    itself = open_store(url)
    path, mark, options = url.partition("?")
    parts = path.rstrip("/").split("/")
    name = CheckpointName.parse(parts[-1]) if parts[-2:-1] == ["checkpoints"] else None
    inside = 3 if name is not None else _inside(itself, parts[-1])
    if not inside or not is_run_id(parts[-inside]):
        return itself, None, None
    try:
        return open_store("/".join(parts[:-inside]) + mark + options), parts[-inside], name
    except UsageError:  # nothing is left to be a store
        return itself, None, None


def _inside(place: BlobStore, called: str) -> int:
    """How many folders deep in its store a place is, by what lies there: 1 for a run, 2 for its checkpoints, and 0 for
    a store, which it is as soon as one run lies there, whatever else does."""
    found = 0
    for info in place.list(""):
        folder, _, rest = info.key.partition("/")
        if rest.startswith(("attempts/", "checkpoints/")):
            return 0
        if (folder == "attempts" and rest.endswith(".json") and "/" not in rest) or (
            folder == "checkpoints" and CheckpointName.parse(rest.partition("/")[0])
        ):
            found = 1
        elif called == "checkpoints" and CheckpointName.parse(folder):
            found = 2
    return found


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--step {text!r}: expected a whole number from 0 up, as in 1200")
    return int(text)
