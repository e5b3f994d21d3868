"""`spotguard export URL --to FORMAT DEST`: a checkpoint for tools that know nothing of spotguard.

The export is written under a temporary name. It gets the name DEST when it is complete and verified. If it fails, it is
removed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint
from spotguard.hooks.checkpoint.format.manifest import lacks
from spotguard.hooks.restore.interop import safetensors_export
from spotguard.hooks.restore.progress import ReadProgress
from spotguard.hooks.restore.retrying_store import RetryingStore
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CheckpointError, StoreError, UsageError
from spotguard.providers.optional_deps import how_to_install
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.text import amount, count

from ...output import add_json, print_json
from ...select_checkpoint import add_target, target

DESCRIPTION = """\
Write a checkpoint in a form that other tools read: a directory for PyTorch's dcp.load, or one
safetensors file with the model's weights. It verifies every byte. It overwrites nothing, and leaves nothing
behind if it fails."""

EXAMPLES = """\
examples:
  spotguard export file:///mnt/checkpoints --run-id gpt-small-7 --to safetensors gpt.safetensors
  spotguard export --step 1200 --to dcp /mnt/dcp/step-1200
  spotguard export --to safetensors everything.safetensors --all"""

FORMATS = ("dcp", "safetensors")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, step=True)
    parser.add_argument(
        "--to",
        nargs=2,
        metavar=("FORMAT", "DEST"),
        help="write dcp to a new directory, or safetensors to a new file (required)",
    )
    parser.add_argument(
        "--all", action="store_true", help="write all tensors, by their names in the checkpoint"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    form, dest = _asked(arguments)
    meant = target(arguments)
    whole = meant.whole()
    store = RetryingStore(meant.store, SystemClock(), "Nothing was exported")
    with appearing(dest) as path:
        tensors = (
            _safetensors(store, whole, path, everything=arguments.all)
            if form == "safetensors"
            else _dcp(store, whole, path)
        )
        nbytes = _bytes(path)
    body = {
        "run_id": whole.run_id,
        "checkpoint": str(whole.name),
        "step": whole.name.step,
        "to": form,
        "path": str(dest),
        "tensors": tensors,
        "bytes": nbytes,
        "lacks": lacks(whole.level, whole.missing),
    }
    if arguments.json:
        print_json(body)
    else:
        without = f"; it was saved without {body['lacks']}" if body["lacks"] else ""
        which = f"step {whole.name.step} of run {whole.run_id}"
        print(f"{dest}: {which}, {_contents(body)}, every checksum agreed{without}")
    return 0


def _asked(arguments: argparse.Namespace) -> tuple[str, Path]:
    """Return the format and the destination, checked as far as possible before the export.

    Raises:
        UsageError: the format or the destination cannot be used.
    """
    if arguments.to is None:
        raise UsageError("--to is missing: pass --to safetensors FILE, or --to dcp DIRECTORY")
    form, word = arguments.to
    if form not in FORMATS:
        raise UsageError(f"--to {form!r}: expected one of {', '.join(FORMATS)}, and a place")
    if form == "dcp" and arguments.all:
        raise UsageError("--all is for safetensors: a directory for DCP contains everything")
    if form == "dcp" and importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"PyTorch writes what dcp.load reads, and there is none here: {how_to_install('torch')}"
        )
    dest = Path(os.path.abspath(word))
    if not dest.parent.is_dir():
        raise UsageError(f"--to {form} {word!r}: the directory {dest.parent} does not exist: make it first")
    _refuse_what_is_there(dest)
    return form, dest


def _refuse_what_is_there(dest: Path) -> None:
    if os.path.lexists(dest):
        raise UsageError(f"{dest} is there already, and nothing is overwritten: choose another name")


def _safetensors(store: BlobStore, whole: WholeCheckpoint, path: Path, *, everything: bool) -> int:
    names = (
        {name: name for name in whole.tensors} if everything else safetensors_export.weights(whole.manifests)
    )
    if not names and not everything:
        raise CheckpointError(
            f"checkpoint {whole.name} holds no module's weights: --all exports what it holds"
        )
    planned = safetensors_export.layout(whole, names)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.truncate(file, planned.size)
        with _meter(whole) as meter:
            safetensors_export.write(store, whole, planned, file, progress=meter.show)
        os.fsync(file)
    finally:
        os.close(file)
    return len(names)


def _dcp(store: BlobStore, whole: WholeCheckpoint, path: Path) -> int:
    from spotguard.hooks.restore.interop.dcp_export import to_dcp

    path.mkdir()
    with _meter(whole) as meter:
        return to_dcp(store, whole, path, progress=meter.show)


def _meter(whole: WholeCheckpoint) -> ReadProgress:
    return ReadProgress(f"exporting step {whole.name.step}")


@contextmanager
def appearing(dest: Path) -> Iterator[Path]:
    """Yield a temporary path beside `dest`.

    At the end the file or directory there is renamed to `dest`. After an error it is removed.

    Raises:
        StoreError: the export cannot be written.
    """
    path = dest.with_name(f".{dest.name}.{secrets.token_hex(4)}.part")
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield path
        _rename(path, dest)
    except OSError as error:
        raise StoreError(
            f"{dest} cannot be written: {error.strerror or error}; nothing was left there"
        ) from error
    finally:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> NoReturn:
    """Exit by an exception, so that the temporary file is removed, with the code that a shell would see."""
    raise SystemExit(128 + number)


def _rename(path: Path, dest: Path) -> None:
    """Rename `path` to `dest`, and replace nothing: a file that took the name meanwhile keeps it."""
    _refuse_what_is_there(dest)
    try:
        os.link(path, dest)  # a rename would replace a file
    except OSError:  # a directory, or a file system without links
        _refuse_what_is_there(dest)
        os.rename(path, dest)
    folder = os.open(dest.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files)


def _contents(body: dict[str, Any]) -> str:
    return f"{count(body['tensors'], 'tensor')}, {amount(body['bytes'])}"
