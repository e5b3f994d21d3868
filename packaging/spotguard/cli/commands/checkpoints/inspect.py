"""`spotguard inspect URL`: the contents of one checkpoint."""

from __future__ import annotations

import argparse
from math import prod
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spotguard.hooks.arguments.names import in_words
from spotguard.hooks.checkpoint.attempts import attempt_record
from spotguard.hooks.checkpoint.catalog import WholeCheckpoint
from spotguard.hooks.checkpoint.format.manifest import FORMAT, lacks
from spotguard.providers.text import amount, count, printable

from ...output import add_json, console, moment, print_json
from ...select_checkpoint import add_target, target

DESCRIPTION = """\
Show one checkpoint: its time, machine and purpose, its objects, its tensors with dtype and shape, and
the names of its other state. It reads the manifests only, no tensor."""

EXAMPLES = """\
examples:
  spotguard inspect file:///mnt/checkpoints --run-id gpt-small-7
  spotguard inspect file:///mnt/checkpoints/gpt-small-7/checkpoints/000001200-0003-0007
  spotguard inspect --step 1200 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, step=True)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    meant = target(arguments)
    whole = meant.whole()
    record = attempt_record(meant.store, whole.run_id, whole.name.attempt)
    body = as_json(whole, meant.store.url)
    body["launchers"] = record.info.get("launchers", []) if record is not None else []
    if arguments.json:
        print_json(body)
    else:
        _show(body)
    return 0


def as_json(whole: WholeCheckpoint, url: str) -> dict[str, Any]:
    """Return everything about the checkpoint but its tensors' values, as plain JSON."""
    first = whole.manifests[0]
    return {
        "store": url,
        "run_id": whole.run_id,
        "checkpoint": str(whole.name),
        "step": whole.name.step,
        "attempt": whole.name.attempt,
        "save": whole.name.save,
        "level": whole.level,
        "missing": list(whole.missing),
        "suspect": whole.suspect,
        "left_out": list(whole.left_out),
        "kind": first.kind,
        "created": first.created,
        "world": first.world,
        "format": FORMAT,
        "bytes": whole.nbytes,
        "environment": dict(first.environment),
        "state": sorted({name for manifest in whole.manifests for name in manifest.state}),
        "ranks": [
            {"rank": manifest.rank, "objects": len(manifest.objects), "bytes": manifest.nbytes}
            for manifest in whole.manifests
        ],
        "objects": [
            {"key": manifest.object_key(index), "bytes": entry.size}
            for manifest in whole.manifests
            for index, entry in enumerate(manifest.objects)
        ],
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "stored": tensor.stored or tensor.dtype,
                "shape": list(tensor.shape),
                "bytes": sum(chunk.end - chunk.start for _, chunk in tensor.chunks),
                "chunks": len(tensor.chunks),
            }
            for tensor in whole.tensors.values()
        ],
    }


def _show(body: dict[str, Any]) -> None:
    out = console()
    elements = sum(prod(tensor["shape"]) for tensor in body["tensors"])
    out.print(
        Text(f"run {body['run_id']}, step {body['step']}, checkpoint {body['checkpoint']}", style="bold")
    )
    lacking = lacks(body["level"], body["missing"])
    without = f", without {lacking}" if lacking else ""
    out.print(f"  {body['kind']} save of {moment(body['created'])}, level {body['level']}{without}")
    if body["suspect"]:
        out.print(Text(f"  suspect: {body['suspect']}", style="yellow"))
    for each in body["left_out"]:
        out.print(Text(f"  left out: {each}", style="yellow"))
    if started := in_words(body):
        out.print(Text(f"  attempt {body['attempt']}, started by {started}"))
    ranks, objects = count(body["world"], "rank"), count(len(body["objects"]), "object")
    out.print(f"  {ranks}, {objects}, {amount(body['bytes'])}")
    out.print(f"  {count(len(body['tensors']), 'tensor')}, {count(elements, 'element')}")
    if body["world"] > 1:
        shares = [rank["bytes"] for rank in body["ranks"]]
        out.print(f"  written by each rank: {amount(min(shares))} to {amount(max(shares))}")
    for name, value in body["environment"].items():
        out.print(f"  {name}: {value}")
    out.print(f"  state: {', '.join(map(printable, body['state'])) or '-'}")
    out.print(Padding(_table(body["tensors"]), (0, 0, 0, 2), expand=False))


def _table(tensors: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("tensor", "dtype", "shape", "size", "chunks"):
        table.add_column(name, justify="right" if name in ("size", "chunks") else "left", overflow="fold")
    for tensor in _folded(tensors):
        stored = "" if tensor["stored"] == tensor["dtype"] else f" as {tensor['stored']}"
        shape = "x".join(map(str, tensor["shape"])) or "scalar"
        size, chunks = amount(tensor["bytes"]), str(tensor["chunks"])
        table.add_row(printable(tensor["name"]), tensor["dtype"] + stored, shape, size, chunks)
    return table


def _folded(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the tensors that each rank has of its own into one line: `@…/rng` for those of 128 ranks."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for tensor in tensors:
        rank, _, rest = tensor["name"].partition("/")
        form = (tensor["dtype"], tensor["stored"], *tensor["shape"])
        key = (rest, *form) if rank.startswith("@") else (tensor["name"],)
        if (before := merged.get(key)) is None:
            merged[key] = tensor
        else:
            sums = {word: before[word] + tensor[word] for word in ("bytes", "chunks")}
            merged[key] = {**before, **sums, "name": f"@…/{rest}"}
    return list(merged.values())
