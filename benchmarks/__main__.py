"""`python -m benchmarks [NAME ...]`: measure, print the table, keep the raw numbers in benchmarks/results/."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from .rows import Row, Unable, table
from .scale import Scale

#: Each is a module here with `measure(scale)`. In the order in which a reader wants to know.
NAMES = (
    "audit",
    "step",
    "notice",
    "scenarios",
    "first_byte",
    "agent",
    "agreement",
    "rate",
    "links",
    "ranks",
    "background",
    "verifying",
    "early",
    "trace",
    "failures",
    "clean",
    "recovery",
    "cuts",
    "ettr",
    "manifests",
    "listing",
    "losses",
    "gpu",
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(NAMES)} (all)")
    parser.add_argument("--tiny", action="store_true", help="sizes that show only that it runs")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="how long an idle agent is watched (600)"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"{unknown[0]} is no benchmark: choose from {', '.join(NAMES)}")
    rows: list[Row] = []
    unable = False
    for name in options.names or NAMES:
        try:
            rows += run(name, tiny=options.tiny, seconds=options.seconds)
        except Unable as why:
            print(f"  not measured: {why}", flush=True)
            unable = name in options.names or unable  # who asked for all wants what there is
    print(f"\n{machine()}\n\n{table(rows)}")
    print(f"\nraw numbers: {keep(rows)}")
    return int(unable)


def run(name: str, *, tiny: bool = False, seconds: float = 600.0) -> list[Row]:
    """The rows of one benchmark, told as they come."""
    module = importlib.import_module(f"{__package__}.{name}")
    print(f"{name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sg-bench-", dir="/tmp") as folder:  # short: sockets lie in it
        rows = []
        for row in module.measure(Scale(Path(folder), tiny, seconds)):
            rows.append(row)
            print(f"  {row.what}: {row.cells()[1]} ({row.cells()[2]})", flush=True)
    return rows


def machine() -> str:
    """What the numbers depend on."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {memory} GiB, Python {platform.python_version()}, torch {torch.__version__}, "
        f"load {load:.1f} at the end"
    )


def keep(rows: list[Row]) -> Path:
    """Write the raw numbers; a second run on a day goes behind the first."""
    path = Path(__file__).parent / "results" / time.strftime("%Y-%m-%d.json")
    path.parent.mkdir(exist_ok=True)
    runs = json.loads(path.read_text()) if path.exists() else []
    runs.append({"at": time.strftime("%H:%M"), "machine": machine(), "rows": [row.plain() for row in rows]})
    path.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
