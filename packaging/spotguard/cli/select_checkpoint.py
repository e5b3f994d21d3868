"""Selection of the run and the checkpoint that a command works on, from its URL and flags.

The URL may name the store, a run's directory, the `checkpoints` directory of a run, or one checkpoint. Logs and outcomes print such
URLs, so a URL copied from there works here. Only a checkpoint's URL can be recognised by its form: a store may have the name
`checkpoints`, or a name that is a valid run id. For all other URLs, a listing of the store decides.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from spotguard.hooks.arguments.names import default_store
from spotguard.hooks.checkpoint.catalog import CheckpointFolder, WholeCheckpoint, examine, scan
from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.listing import list_runs
from spotguard.providers.errors import CheckpointError, UsageError
from spotguard.providers.run_id import is_run_id
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.names import folder_of, read_place
from spotguard.providers.text import value_in

from .next_restore import next_restore
from .select_agent import checked_run_id


@dataclass(frozen=True, slots=True)
class Target:
    store: BlobStore
    #: None: all runs of the store.
    run_id: str | None
    name: CheckpointName | None = None
    step: int | None = None

    def check_there(self) -> None:
        """Raise CheckpointError if the store is a directory that is missing: that is no store without a checkpoint."""
        if self.store.url.startswith("file:") and not (folder := folder_of(self.store.url)).exists():
            raise CheckpointError(
                f"{self.store.url}: there is no directory {folder}: check the URL, or train with this store first"
            )

    def runs(self) -> list[str]:
        """Return the selected runs."""
        return [self.run_id] if self.run_id is not None else list_runs(self.store)

    def the_run(self) -> str:
        """Return the one selected run.

        Raises:
            CheckpointError: the store holds no run.
            UsageError: the store holds several runs, and the command line names none.
        """
        if self.run_id is not None:
            return self.run_id
        runs = list_runs(self.store)
        if len(runs) == 1:
            return runs[0]
        if not runs:
            self.check_there()
            raise CheckpointError(f"{self.store.url} holds no run: check the URL, or train with this store")
        raise UsageError(f"{self.store.url} holds several runs: pass --run-id with one of {', '.join(runs)}")

    def chosen(self) -> tuple[list[CheckpointFolder], list[CheckpointFolder]]:
        """Return the selected checkpoints, newest first, and all checkpoints of their run.

        Raises:
            CheckpointError: no checkpoint is selected.
        """
        run_id = self.the_run()
        folders = scan(self.store, run_id)
        meant = [folder for folder in folders if self.means(folder.name)]
        if not meant:
            self.check_there()
            asked = "" if self.name is None and self.step is None else f" {self._said()}"
            steps = sorted({folder.name.step for folder in folders}, reverse=True)
            others = (
                f"there are those of steps {', '.join(map(str, steps[:8]))}"
                if steps
                else "nothing was saved yet"
            )
            if not steps and (runs := list_runs(self.store)):
                others = f"there are runs {', '.join(runs)}"
            raise CheckpointError(f"run {run_id} in {self.store.url} has no checkpoint{asked}: {others}")
        return meant, folders

    def whole(self) -> WholeCheckpoint:
        """Return the selected checkpoint that a restore would take.

        Raises:
            UnsupportedFormatError: a restore would refuse the checkpoint.
            CheckpointError: no selected checkpoint is complete; the message says why the newest is not.
        """
        chosen, folders = self.chosen()
        if self.name is None and self.step is None:
            start = next_restore(self.store, self.the_run())
            if start.taken is not None:
                return start.taken
        reasons: list[CheckpointError] = []
        for folder in chosen:
            try:
                return examine(self.store, folder, folders)
            except UnsupportedFormatError:
                raise
            except CheckpointError as error:
                reasons.append(error)
        raise CheckpointError(f"checkpoint {chosen[0].name} is not complete: {reasons[0]}") from reasons[0]

    def means(self, name: CheckpointName) -> bool:
        """Return whether the URL and the flags select this checkpoint."""
        return (self.name is None or name == self.name) and (self.step is None or name.step == self.step)

    def _said(self) -> str:
        return f"of step {self.step}" if self.name is None else str(self.name)


def add_target(parser: argparse.ArgumentParser, *, step: bool) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="select a store, a run or a checkpoint [SPOTGUARD_STORE]",
    )
    parser.add_argument("--run-id", metavar="NAME", help="select this run")
    if step:
        parser.add_argument("--step", metavar="N", help="select the checkpoint of this step [the newest]")


def target(arguments: argparse.Namespace) -> Target:
    run_id = checked_run_id(arguments.run_id)
    step = _step(getattr(arguments, "step", None))
    if not arguments.url:
        # The default of `run`. It is always a store, even if its name has the form of a run or a checkpoint.
        if configured := value_in(os.environ, "SPOTGUARD_STORE"):
            return Target(open_store(read_place("SPOTGUARD_STORE", configured)), run_id, step=step)
        return Target(open_store(read_place("the default", default_store(os.getcwd()))), run_id, step=step)
    store, url_run_id, name = _place(read_place("URL", arguments.url))
    if run_id is not None and url_run_id is not None and run_id != url_run_id:
        raise UsageError(f"--run-id {run_id!r}: the URL names run {url_run_id}: leave one of them out")
    return Target(store, run_id or url_run_id, name, step)


def _place(url: str) -> tuple[BlobStore, str | None, CheckpointName | None]:
    """Return the store, and the run and the checkpoint if the URL names them."""
    itself = open_store(url)
    path, mark, options = url.partition("?")
    parts = path.rstrip("/").split("/")
    name = CheckpointName.parse(parts[-1]) if parts[-2:-1] == ["checkpoints"] else None
    inside = 3 if name is not None else _inside(itself, parts[-1])
    if not inside or not is_run_id(parts[-inside]):
        return itself, None, None
    try:
        return open_store("/".join(parts[:-inside]) + mark + options), parts[-inside], name
    except UsageError:  # the rest of the URL names no store
        return itself, None, None


def _inside(place: BlobStore, called: str) -> int:
    """Return how many directories below its store a place is, by its contents.

    The depth is 1 for a run, 2 for a run's `checkpoints` directory, and 0 for a store. A place that holds one run is a store,
    even if it holds other objects too.
    """
    depth = 0
    for info in place.list(""):
        folder, _, rest = info.key.partition("/")
        if rest.startswith(("attempts/", "checkpoints/")):
            return 0
        if (folder == "attempts" and rest.endswith(".json") and "/" not in rest) or (
            folder == "checkpoints" and CheckpointName.parse(rest.partition("/")[0])
        ):
            depth = 1
        elif called == "checkpoints" and CheckpointName.parse(folder):
            depth = 2
    return depth


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--step {text!r}: expected a whole number from 0 up, as in 1200")
    return int(text)
