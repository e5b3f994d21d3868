"""`spotguard ls URL`: the checkpoints in a store."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from typing import Literal

from rich.table import Table
from rich.text import Text

from spotguard.hooks.checkpoint.catalog import PartialCheckpoint
from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError
from spotguard.hooks.checkpoint.listing import Checkpoint, list_checkpoints, list_runs
from spotguard.hooks.ipc.threads import side_by_side
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CheckpointError, UsageError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.text import TEXT, amount, clip, span
from spotguard.report.runs import RunLine, all_runs
from spotguard.report.summary import STATES

from ...next_restore import next_restore
from ...output import add_json, console, moment, print_json, short_moment
from ...select_checkpoint import Target, add_target, target

DESCRIPTION = """\
List the checkpoints of every run in a store, newest first. The next start restores the one that `>`
marks. Complete means that every file is present with its size. To read the files, too, use
`spotguard verify`.

With --runs, list the runs instead: which of them train, and which of them train without a checkpoint."""

EXAMPLES = """\
examples:
  spotguard ls
  spotguard ls file:///mnt/checkpoints
  spotguard ls file:///mnt/checkpoints --runs
  spotguard ls file:///mnt/checkpoints --run-id gpt-small-7 --json"""

_COLOURS = {"complete": "green", "partial": "yellow", "damaged": "red", "unsupported": "yellow"}

#: Columns that a narrow terminal does not show, in the order in which they are dropped once `saved` is short. A cut name
#: would be useless. If there is no room for a checkpoint's name, `--step` can select it.
_SPARED = ("ranks", "size", "made for", "saved", "checkpoint")

#: Least width of a status with its reason, which is folded.
_STATUS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, step=False)
    parser.add_argument(
        "--runs", action="store_true", help="list the runs, with their state and newest checkpoint"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    meant = target(arguments)
    meant.check_there()
    if arguments.runs:
        return _runs(meant, json=arguments.json)
    runs = side_by_side(lambda run_id: lines_of(meant.store, run_id), meant.runs())
    lines = [line for each in runs for line in each if meant.means(line.each.name)]
    if arguments.json:
        print_json({"store": meant.store.url, "checkpoints": [as_json(line) for line in lines]})
        return 0
    if not lines:
        which = "" if meant.name is None else f" {meant.name}"
        whose = "" if meant.run_id is None else f" of run {meant.run_id}"
        others = [] if meant.run_id is None else list_runs(meant.store)
        there = f"; there are runs {', '.join(others)}" if others else ""
        print(f"no checkpoint{which}{whose} in {meant.store.url}{there}")
        return 0
    out = console()
    out.print(_table(lines, out.width, SystemClock().time()))
    return 0


def _runs(meant: Target, *, json: bool) -> int:
    if meant.name is not None:
        raise UsageError(f"the URL names checkpoint {meant.name}: pass the store or the run with --runs")
    runs = all_runs(meant.store, SystemClock().time(), meant.run_id)
    if json:
        print_json({"store": meant.store.url, "runs": [asdict(each) for each in runs]})
        return 0
    if not runs:
        print(f"no run{f' {meant.run_id}' if meant.run_id else ''} in {meant.store.url}")
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("run", "state", "step", "checkpoint", "attempts", "last error"):
        justify: Literal["left", "right"] = "right" if name in ("step", "attempts") else "left"
        table.add_column(name, justify=justify, overflow="fold")
    for each in runs:
        table.add_row(*_cells(each))
    console().print(table)
    return 0


def _cells(run: RunLine) -> tuple[Text, ...]:
    state, style = STATES.get(run.state, run.state), ""
    if run.late:
        state, style = f"{state}, checkpoint late", "bold red"
    elif run.state in ("error", "silent", "stalled"):
        style = "red"
    error = f"attempt {run.failed_attempt}: {clip(run.failure, TEXT)}" if run.failure else "-"
    return (
        Text(run.run_id),
        Text(state, style=style),
        Text("-" if run.step is None else f"{run.step:,}"),
        Text("none" if run.age is None else f"{span(run.age)} ago"),
        Text(str(run.attempts)),
        Text(error),
    )


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    each: Checkpoint
    #: Whether the next start restores this one.
    next: bool


def lines_of(store: BlobStore, run_id: str) -> list[ListedCheckpoint]:
    """Return every checkpoint of a run, newest first."""
    checkpoints = list_checkpoints(store, run_id)
    try:
        start = next_restore(store, run_id)
    except UnsupportedFormatError:  # a restore would refuse; the line of that checkpoint says so
        return [ListedCheckpoint(each, False) for each in checkpoints]
    restored = None if start.taken is None else start.taken.name
    return [
        ListedCheckpoint(_corrected(each, start.passed.get(each.name)), each.name == restored)
        for each in checkpoints
    ]


def _corrected(each: Checkpoint, error: CheckpointError | None) -> Checkpoint:
    """Return the checkpoint with its status corrected by `error`, which comes from its manifests.

    The marker is a shortcut only: the manifests decide whether a checkpoint is complete.
    """
    if error is None or each.status != "complete":
        return each
    return replace(
        each, status="partial" if isinstance(error, PartialCheckpoint) else "damaged", reason=str(error)
    )


def as_json(line: ListedCheckpoint) -> dict[str, object]:
    """Return a line of the list as plain JSON."""
    each = line.each
    return {
        "run_id": each.run_id,
        "checkpoint": str(each.name),
        "step": each.name.step,
        "attempt": each.name.attempt,
        "save": each.name.save,
        "status": each.status,
        "reason": each.reason,
        "bytes": each.nbytes,
        "marked": each.marked,
        "world": each.world,
        "level": each.level,
        "missing": list(each.missing),
        "suspect": each.suspect,
        "left_out": list(each.left_out),
        "kind": each.kind,
        "created": each.created,
        "next": line.next,
    }


def _table(lines: list[ListedCheckpoint], width: int, now: float) -> Table:
    width -= max(
        [len("damaged"), *(_STATUS if _reason(line.each) else len(_status(line.each)) for line in lines)]
    )
    columns: dict[str, list[str]] = {
        "": [">" if line.next else "" for line in lines],
        "run": [line.each.run_id for line in lines],
        "step": [str(line.each.name.step) for line in lines],
        "checkpoint": [str(line.each.name) for line in lines],
        "saved": [moment(line.each.created) for line in lines],
        "size": [amount(line.each.nbytes) for line in lines],
        "ranks": ["-" if line.each.world is None else str(line.each.world) for line in lines],
        "made for": [line.each.kind or "-" for line in lines],
    }
    if _wide(columns) > width:
        columns["saved"] = [short_moment(line.each.created, now) for line in lines]
    for name in _SPARED:
        if _wide(columns) > width:
            del columns[name]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in ("step", "size", "ranks") else "left"
        # A run's name may be wider than any terminal. It is folded then, so that it pushes no other column out.
        folds = name == "run" and _wide(columns) > width
        table.add_column(name, justify=justify, no_wrap=not folds, overflow="fold")
    table.add_column("status", overflow="fold")
    for line, *cells in zip(lines, *columns.values(), strict=True):
        each = line.each
        status = _status(each) + (f": {reason}" if (reason := _reason(each)) else "")
        table.add_row(
            *cells, Text(status, style="yellow" if each.suspect or each.left_out else _COLOURS[each.status])
        )
    return table


def _wide(columns: dict[str, list[str]]) -> int:
    return sum(2 + max(len(name), *map(len, cells)) for name, cells in columns.items())


def _status(each: Checkpoint) -> str:
    """Return the status, with the level if that is not full: this column is never dropped."""
    less = "" if each.level in ("full", None) else f" ({each.level})"
    return each.status + less + (", suspect" if each.suspect else "")


def _reason(each: Checkpoint) -> str:
    left_out = f"left out {', '.join(each.left_out)}" if each.left_out else ""
    return each.reason or "; ".join(filter(None, [each.suspect, left_out]))
