"""`spotguard ls URL`: the checkpoints in a store."""

from __future__ import annotations

import argparse

from rich.table import Table
from rich.text import Text

from spotguard.hooks.checkpoints.catalog import Checkpoint, list_checkpoints

from .console import add_json, amount, console, moment, print_json
from .target import add_target, target

DESCRIPTION = """\
Lists the checkpoints of every run in a store, newest first. The one marked > is what the next start
restores: the newest that is whole."""

EXAMPLES = """\
examples:
  spotguard ls
  spotguard ls file:///mnt/checkpoints
  spotguard ls file:///mnt/checkpoints --run-id gpt-small-7 --json"""

_COLOURS = {"whole": "green", "partial": "yellow", "damaged": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, step=False)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    meant = target(arguments)
    found = [each for run_id in meant.runs() for each in list_checkpoints(meant.store, run_id)]
    if arguments.json:
        print_json({"store": meant.store.url, "checkpoints": [as_json(each) for each in found]})
        return 0
    if not found:
        print(f"no checkpoint in {meant.store.url}")
        return 0
    console().print(_table(found))
    return 0


def as_json(each: Checkpoint) -> dict[str, object]:
    """A line of the list as plain JSON."""
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
        "kind": each.kind,
        "created": each.created,
    }


def _table(found: list[Checkpoint]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("", "run", "step", "checkpoint", "saved", "size", "ranks", "made for", "status"):
        table.add_column(name, justify="right" if name in ("step", "size", "ranks") else "left")
    newest = _newest(found)
    for each in found:
        table.add_row(
            ">" if each in newest else "",
            each.run_id,
            str(each.name.step),
            str(each.name),
            moment(each.created),
            amount(each.nbytes),
            "-" if each.world is None else str(each.world),
            (each.kind or "-") + ("" if each.level in ("full", None) else f" ({each.level})"),
            Text(each.status + (f": {each.reason}" if each.reason else ""), style=_COLOURS[each.status]),
        )
    return table


def _newest(found: list[Checkpoint]) -> list[Checkpoint]:
    """Of each run, what a restore would take."""
    newest: dict[str, Checkpoint] = {}
    for each in found:  # newest first
        if each.status == "whole" and each.level == "full":
            newest.setdefault(each.run_id, each)
    return list(newest.values())
