"""`spotguard verify URL`: read every byte of a checkpoint again, compare its CRC, and read the state as a restore does."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from spotguard.hooks.checkpoint.catalog import (
    CheckpointFolder,
    CheckpointGone,
    PartialCheckpoint,
    check_index,
    examine,
    scan,
)
from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError
from spotguard.hooks.checkpoint.format.keys import CheckpointName, parse_manifest_name
from spotguard.hooks.checkpoint.format.manifest import lacks
from spotguard.hooks.restore.progress import ReadProgress
from spotguard.hooks.restore.reads.verify import verify
from spotguard.hooks.restore.retrying_store import RetryingStore
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import CheckpointError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.text import amount

from ...low_priority import stand_back
from ...output import add_json, print_json
from ...select_checkpoint import Target, add_target, target

DESCRIPTION = """\
Read every byte of the newest complete checkpoint, compare the checksums of the save, and decode the
state as a restore does. Exit code 1 means that something is damaged, or that nothing is complete."""

EXAMPLES = """\
examples:
  spotguard verify file:///mnt/checkpoints --run-id gpt-small-7
  spotguard verify --step 1200
  spotguard verify --all --json
  spotguard verify --background s3://checkpoints/gpt --run-id gpt-small-7"""

#: Bytes a second that `--background` reads at most: less than one connection gives.
BACKGROUND_RATE = 50e6
#: The verdict on a removed checkpoint. Removal is no damage: a live run deletes its older checkpoints.
_REMOVED = {"status": "removed", "bytes": 0, "damage": ["it was removed while it was read"], "objects": []}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, step=True)
    parser.add_argument(
        "--all", action="store_true", help="verify all selected checkpoints, not only the newest"
    )
    parser.add_argument(
        "--background",
        action="store_true",
        help="read at most 50 MB/s at low priority, and end with the parent process",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    say = None if arguments.json else _say
    if arguments.background:
        stand_back()
    rate = BACKGROUND_RATE if arguments.background else None
    verdicts = verdicts_of(
        target(arguments), everything=arguments.all, say=say, clock=SystemClock(), rate=rate
    )
    if arguments.json:
        print_json({"checkpoints": verdicts})
    statuses = {verdict["status"] for verdict in verdicts}
    return 0 if "complete" in statuses and not statuses & {"damaged", "unsupported"} else 1


def verdicts_of(
    meant: Target,
    *,
    everything: bool,
    say: Callable[[dict[str, Any]], None] | None,
    clock: Clock,
    rate: float | None = None,
) -> list[dict[str, Any]]:
    """Return the verdicts from the newest checkpoint to the first whole one. Newer damaged ones are part of the answer.

    Args:
        meant: the selected checkpoints.
        everything: verify all of them, even after the first whole one.
        say: takes each verdict as soon as it is known.
        clock: the clock of the retries.
        rate: bytes a second at most; None: no limit.
    """
    chosen, folders = meant.chosen()
    # Requests are retried only from here on. A store that never answers is reported at once. A store that fails in the middle
    # of a long verification is not.
    store = RetryingStore(meant.store, clock, "What it holds is not known")
    verdicts: dict[CheckpointName, dict[str, Any]] = {}
    while chosen:
        folder = chosen.pop(0)
        verdict = verdicts[folder.name] = _verdict(store, folder, folders, rate)
        if say is not None:
            say(verdict)
        if verdict["status"] == "complete" and not everything:
            break
        if verdict["status"] == "removed" and not everything:
            # A newer checkpoint may have replaced it, and older ones may be gone as well. So list the run again.
            folders = scan(store, folder.run_id)
            chosen = [each for each in folders if meant.means(each.name) and each.name not in verdicts]
    return list(verdicts.values())


def _verdict(
    store: BlobStore, folder: CheckpointFolder, folders: list[CheckpointFolder], rate: float | None
) -> dict[str, Any]:
    base: dict[str, Any] = {"run_id": folder.run_id, "checkpoint": str(folder.name), "step": folder.name.step}
    try:
        whole = examine(store, folder, folders)
        with ReadProgress(f"verifying step {folder.name.step}") as meter:
            damages = verify(store, whole, progress=meter.show, rate=rate)
        check_index(store, folder, whole)
    except CheckpointGone:
        return {**base, **_REMOVED}
    except CheckpointError as error:
        kinds = (PartialCheckpoint, "partial"), (UnsupportedFormatError, "unsupported")
        status = next((status for kind, status in kinds if isinstance(error, kind)), "damaged")
        return {**base, "status": status, "bytes": 0, "damage": [str(error)], "objects": [*error.objects]}
    if any(each.gone for each in damages) and _is_removed(store, folder):
        damages = [each for each in damages if not each.gone]
        if not damages:
            return {**base, **_REMOVED}
    base |= {
        "level": whole.level,
        "lacks": lacks(whole.level, whole.missing),
        "damage": [str(each) for each in damages],
        "objects": list(dict.fromkeys(each.key for each in damages)),
    }
    return {**base, "status": "damaged" if damages else "complete", "bytes": whole.nbytes}


def _is_removed(store: BlobStore, folder: CheckpointFolder) -> bool:
    """Return whether a prune removed the checkpoint: it deletes manifests before the objects that they name."""
    there = {info.key for info in store.list(folder.prefix)}
    return any(parse_manifest_name(name) and folder.prefix + name not in there for name in folder.files)


def _say(verdict: dict[str, Any]) -> None:
    where = f"run {verdict['run_id']}, step {verdict['step']} ({verdict['checkpoint']})"
    if verdict["status"] == "complete":
        without = f"; it was saved without {verdict['lacks']}" if verdict["lacks"] else ""
        print(f"complete {where}: {amount(verdict['bytes'])}, every checksum agrees{without}")
    else:
        print(f"{verdict['status']:<8} {where}: {verdict['damage'][0]}")
        for line in verdict["damage"][1:]:
            print(f"         {line}")
