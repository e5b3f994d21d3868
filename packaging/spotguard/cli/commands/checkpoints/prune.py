"""`spotguard prune URL --keep K[+N]`: delete older checkpoints."""

from __future__ import annotations

import argparse
from typing import Any

from spotguard.agent.config import parsers
from spotguard.hooks.checkpoint.retention import Keep, Pruning, plan_pruning
from spotguard.providers.errors import UsageError
from spotguard.providers.text import amount, count

from ...output import add_json, print_json
from ...select_checkpoint import Target, add_target, target

DESCRIPTION = """\
Delete all but the newest K complete checkpoints of a run, and the remains of interrupted saves. With
K+N the first checkpoint at or after every Nth step stays as well. The last good one always stays, and
anything newer than it, because it may be a save in progress. Suspect checkpoints do not count: the
newest K of them stay besides, while they are newer than all others."""

EXAMPLES = """\
examples:
  spotguard prune file:///mnt/checkpoints --run-id gpt-small-7 --keep 3 --dry-run
  spotguard prune file:///mnt/checkpoints --keep 3+10000
  spotguard prune file:///mnt/checkpoints --keep 1"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, step=False)
    parser.add_argument(
        "--keep",
        metavar="K[+N]",
        help="keep K checkpoints, and one of every N steps (required)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be deleted, and delete nothing"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.keep is None:
        raise UsageError("--keep is missing: pass how many complete checkpoints to keep, as in --keep 3")
    keep = Keep.of(parsers.keep("--keep", arguments.keep))
    meant = target(arguments)
    meant.check_there()
    if meant.name is not None:
        raise UsageError(
            f"{arguments.url!r} is one checkpoint: name the store or the run, prune keeps the newest"
        )
    done = [_prune(meant, run_id, keep, dry=arguments.dry_run) for run_id in meant.runs()]
    if arguments.json:
        print_json({"dry_run": arguments.dry_run, "runs": done})
        return 0
    for each in done:
        print(_line(each, dry=arguments.dry_run))
    if not done:
        print(f"{meant.store.url} holds no run")
    return 0


def _prune(meant: Target, run_id: str, keep: Keep, *, dry: bool) -> dict[str, Any]:
    plan = plan_pruning(meant.store, run_id, keep=keep.newest, every=keep.every)
    if not dry:
        for keys in plan.steps():
            meant.store.delete(keys)
    return {
        "run_id": run_id,
        "kept": [str(name) for name in plan.kept],
        "checked": None if plan.checked is None else str(plan.checked),
        "deleted": [str(folder.name) for folder in plan.departing],
        "bytes": _bytes(plan),
    }


def _bytes(plan: Pruning) -> int:
    going = {key for keys in plan.steps() for key in keys}
    sizes = (
        size
        for folder in plan.departing
        for name, size in folder.files.items()
        if folder.prefix + name in going
    )
    return sum(sizes)


def _line(done: dict[str, Any], *, dry: bool) -> str:
    if not done["kept"]:
        return f"run {done['run_id']}: no complete checkpoint, so nothing is deleted"
    verb = "would delete" if dry else "deleted"
    gone = f"{verb} {count(len(done['deleted']), 'checkpoint')}, {amount(done['bytes'])}"
    names = "".join(f"\n  {name}" for name in done["deleted"])
    return f"run {done['run_id']}: {gone}; {len(done['kept'])} {'stays' if len(done['kept']) == 1 else 'stay'}, the newest {done['kept'][0]}{names}"
