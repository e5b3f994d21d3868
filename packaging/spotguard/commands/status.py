"""`spotguard status`: what is guarded now, and how well we see."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spotguard.agent import control
from spotguard.providers.clock import SystemClock

from .asking import add_whom, whom
from .console import add_json, ago, amount, console, print_json

DESCRIPTION = """\
Shows every guarded run of yours on this machine: whether the cloud's notices can be seen, where
training stands, how old its newest checkpoint is, and what a notice that stands now has come to.
Exit code 1 where nothing is guarded."""

EXAMPLES = """\
examples:
  spotguard status
  spotguard status --watch
  spotguard status --run-id gpt-small-7 --json"""

NOTHING = "nothing is guarded here: start something with spotguard run -- COMMAND"

#: Seconds between two looks of --watch.
EVERY = 1.0

_COLOURS = {"seeing": "green", "blind": "red", "wrong server": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="look again every second, until Ctrl-C")
    add_whom(parser)
    add_json(parser, "one JSON document (with --watch one a line)")


def run(arguments: argparse.Namespace) -> int:
    path = whom(arguments)
    if arguments.watch:
        return _watch(path, as_json=arguments.json)
    found = ask(path)
    if arguments.json:
        print_json({"agents": found})
    else:
        console().print(picture(found))
    return 0 if any("error" not in body for body in found) else 1


def ask(path: Path | None) -> list[dict[str, Any]]:
    """The answer of one agent, or of all that this user may ask."""
    return [control.status(path)] if path is not None else control.statuses(os.environ, os.geteuid())


def _watch(path: Path | None, *, as_json: bool) -> int:
    clock, never = SystemClock(), threading.Event()
    try:
        if as_json or not sys.stdout.isatty():
            while True:
                found = ask(path)
                print_json({"agents": found}, indent=None) if as_json else console().print(picture(found))
                clock.wait(never, EVERY)
        with Live(picture(ask(path)), console=console(), auto_refresh=False, screen=True) as live:
            while not clock.wait(never, EVERY):
                live.update(picture(ask(path)), refresh=True)
    except KeyboardInterrupt:
        pass  # the only way out of a view, and no failure
    return 0


def picture(found: list[dict[str, Any]]) -> RenderableType:
    """The answers as they are shown."""
    if not found:
        return Text(NOTHING)
    return Group(*(part for body in found for part in _agent(body)))


def _agent(body: dict[str, Any]) -> list[RenderableType]:
    if "error" in body:
        return [Text(f"{body['socket']}: {body['error']}", style="red"), Text()]
    parts: list[RenderableType] = [Text(_title(body), style="bold")]
    parts += [_source(source) for source in body["sources"]]
    if not body["sources"]:
        parts.append(Text("  notices: none is watched; SIGTERM and drills are heard", style="yellow"))
    if body["notice"] is not None:
        parts.append(_notice(body["notice"]))
    parts += [_standing(event) for event in body.get("standing", ())]  # an older agent does not say
    parts.append(_sessions(body["sessions"]) if body["sessions"] else _nobody())
    if body["last_outcome"] is not None:
        parts.append(Text(f"  last: {body['last_outcome']['line']}"))
    return [*parts, Text()]


def _title(body: dict[str, Any]) -> str:
    since = f"for {ago(body['for_seconds'])}"
    if body["service"]:
        return f"service (pid {body['pid']}), {since}"
    command = body["command"]
    doing = "starting" if command is None else f"command pid {command['pid']}"
    again = f", restarted {command['restarts']} times" if command and command["restarts"] else ""
    return f"run {body['run_id']} (pid {body['pid']}), {doing}, {since}{again}, {body['phase']}"


def _source(source: dict[str, Any]) -> Text:
    sight = source["sight"]
    line = Text(f"  notices: {source['name']}: ")
    line.append(sight, style=_COLOURS.get(sight, "red"))
    line.append(f" for {ago(source['for_seconds'])}")
    for words in (source["detail"], source["advice"]):
        if words:
            line.append(f"; {words}")
    return line


def _notice(notice: dict[str, Any]) -> Text:
    what = "drill" if notice["drill"] else f"{notice['kind'].upper()} NOTICE"
    text = f"  {what} from {notice['source']}: {notice['seconds_left']:.1f} s left"
    return Text(text, style="bold yellow" if notice["drill"] else "bold red")


def _standing(event: dict[str, Any]) -> Text:
    """What training goes on under."""
    text = f"  {event['severity']}: {event['kind']} from {event['source']}"
    if event["seconds_left"] is None:
        return Text(f"{text}, for {ago(event['for_seconds'])}; {event['then']}", style="yellow")
    text += f" in {ago(event['seconds_left'])}; {event['then']} in {ago(event['then_in'])}"
    return Text(text, style="yellow")


def _nobody() -> Text:
    return Text(
        "  no training process has registered: a notice would end the command unsaved", style="yellow"
    )


def _sessions(sessions: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("pid", "name", "rank", "step", "state", "checkpoint", "saves", "now"):
        table.add_column(name, justify="right" if name in ("pid", "step") else "left")
    for each in sorted(sessions, key=lambda s: (s["run_id"], s["rank"], s["pid"])):
        table.add_row(
            str(each["pid"]),
            each["name"],
            f"{each['rank']}/{each['world']}",
            str(each["step"]) if each["step"] >= 0 else "-",
            amount(each["bytes"]) if each["bytes"] else "-",
            _checkpoint(each),
            each["mode"] + (f": {each['detail']}" if each["detail"] else ""),
            _saving(each["saving"]),
        )
    return table


def _checkpoint(session: dict[str, Any]) -> str:
    if session["checkpoint_age"] is None:
        return "none yet"
    return f"step {session['checkpoint_step']}, {ago(session['checkpoint_age'])} ago"


def _saving(saving: dict[str, Any] | None) -> str:
    if saving is None:
        return "training"
    done = f" {amount(saving['bytes'])}" if saving["bytes"] else ""
    return f"{saving['phase']}{done}" + (f": {saving['why']}" if saving["why"] else "")
