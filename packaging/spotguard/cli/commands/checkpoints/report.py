"""`spotguard report URL`: what became of the time of one run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.table import Table
from rich.text import Text

from spotguard.hooks.checkpoint.format.keys import dismissed_key
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CheckpointError, UsageError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.text import TEXT, clip
from spotguard.report.facts import RunFacts
from spotguard.report.page import page
from spotguard.report.reading import read_run
from spotguard.report.reckoning import RunReport, reckon
from spotguard.report.summary import (
    STATES,
    alarm_of,
    as_json,
    cause_of,
    lines,
    lost_steps,
    short_seconds,
    steps,
)

from ...output import add_json, console, print_json, short_moment
from ...select_checkpoint import add_target, target

DESCRIPTION = """\
Show where a run's time went, over all its attempts and machines. The report has the steps that count, the
lost ones, preemptions and errors, and what the checkpoints cost. It reads the small records of the store,
and no tensor."""

EXAMPLES = """\
examples:
  spotguard report file:///mnt/checkpoints --run-id gpt-small-7
  spotguard report --html report.html
  spotguard report --price 2.10 --json
  spotguard report --dismiss stall-0001-01"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, step=False)
    parser.add_argument(
        "--price", metavar="DOLLARS", help="reckon money too, at this price of a machine hour"
    )
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML page")
    parser.add_argument("--dismiss", metavar="ID", help="record that this failure or stall was a false alarm")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    price = None if arguments.price is None else _price(arguments.price)
    meant = target(arguments)
    if meant.name is not None:
        raise UsageError(f"{arguments.url!r} is one checkpoint: name the store or the run")
    run_id = meant.the_run()
    facts = read_run(meant.store, run_id, SystemClock().time())
    if not facts.attempts:
        raise CheckpointError(
            f"{meant.store.url} has nothing of run {run_id}: see spotguard ls --runs for its runs"
        )
    if arguments.dismiss is not None:
        _dismiss(meant.store, facts, arguments.dismiss)
        facts = read_run(meant.store, run_id, facts.now)
    report = reckon(facts, price)
    if arguments.html is not None:
        _write(Path(arguments.html), page(report, facts))
    if arguments.json:
        print_json(as_json(report))
    elif arguments.html is not None:
        print(f"the report of run {run_id} is in {arguments.html}")
    else:
        _show(report)
    return 0


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 < price < 1e6:
        raise UsageError(f"--price {text!r}: expected the dollars of a machine hour, as in 2.10")
    return price


def _dismiss(store: BlobStore, facts: RunFacts, id: str) -> None:
    known = [each.id for each in reckon(facts).alarms]
    if id not in known:
        raise UsageError(
            f"--dismiss {id!r}: expected an id of the report: {', '.join(known[-8:]) or 'it has none'}"
        )
    store.put(dismissed_key(facts.run_id, id), memoryview(json.dumps({"id": id}).encode()))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--html {str(path)!r}: {error.strerror}: pass a file in a directory that you may write"
        ) from error


def _show(report: RunReport) -> None:
    out = console()
    out.print(Text(f"run {report.run_id} in {report.store}: {STATES[report.state]}", style="bold"))
    for each in lines(report, out.width):
        out.print(Text(each, no_wrap=True, overflow="ignore"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("attempt", "started", "steps", "lost", "kept", "step time", "end"):
        right = name in ("attempt", "lost", "kept", "step time")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for line in report.attempts:
        table.add_row(
            str(line.number),
            short_moment(line.started, report.now),
            f"{steps(line.first)} to {steps(line.last if line.last is not None else line.committed)}",
            lost_steps(line),
            steps(line.kept),
            short_seconds(line.step_seconds),
            Text(cause_of(line)),
        )
    out.print(table)
    for alarm in report.alarms:
        out.print(Text(f"{alarm.id}  {short_moment(alarm.at, report.now)}  {alarm_of(alarm)}"))
        if alarm.failure is not None and alarm.failure.advice and not alarm.dismissed:
            out.print(Text(f"  what to do: {clip(alarm.failure.advice, TEXT)}"))
        if alarm.stall is not None and alarm.stall.culprit and not alarm.dismissed:
            out.print(Text(f"  cause: {clip(alarm.stall.culprit, TEXT)}"))
    for note in report.notes:
        out.print(Text(note, style="dim"))
