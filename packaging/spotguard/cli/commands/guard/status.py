"""`spotguard status`: the guarded runs of this machine, and whether their sources can see notices."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from spotguard.agent.ipc import control
from spotguard.providers.clock import SystemClock

from ...output import add_json, console, print_json
from ...select_agent import add_whom, whom
from ...status import view

DESCRIPTION = """\
Show your guarded runs on this machine: the notice sources and their health, the training step, the
age of the newest checkpoint, and any notice. Exit code 1 means that nothing is guarded."""

EXAMPLES = """\
examples:
  spotguard status
  spotguard status --watch
  spotguard status --run-id gpt-small-7 --json"""

NOTHING = "nothing is guarded here: start a command with spotguard run -- COMMAND"

#: Seconds between two refreshes of --watch.
EVERY = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="update every second, until Ctrl-C")
    add_whom(parser, "all")
    add_json(parser, "one JSON document; with --watch one a line")


def run(arguments: argparse.Namespace) -> int:
    path = whom(arguments)
    if arguments.watch:
        return _watch(path, as_json=arguments.json)
    answers = ask(path)
    if arguments.json:
        print_json({"agents": answers})
    else:
        out = console()
        out.print(picture(answers, _width(out)), soft_wrap=True)
    return 0 if any("error" not in body for body in answers) else 1


def ask(path: Path | None) -> list[dict[str, Any]]:
    """Return the answer of the agent at `path`, or of all agents that this user may ask."""
    return [control.status(path)] if path is not None else control.statuses(os.environ, os.geteuid())


def _watch(path: Path | None, *, as_json: bool) -> int:
    out = console()
    try:
        if as_json:
            for answers in _looks(path):
                print_json({"agents": answers}, indent=None)
        elif out.is_terminal and not out.is_dumb_terminal:
            with Live(console=out, auto_refresh=False, screen=True) as view:
                for answers in _looks(path):
                    view.update(picture(answers, out.width), refresh=True)
        else:
            _print_lines(path, out)
    except KeyboardInterrupt:
        pass  # the only way to end a view, and no failure
    return 0


def _looks(path: Path | None) -> Iterator[list[dict[str, Any]]]:
    """Yield the answers every second, for ever: an agent that has ended may be started again."""
    clock, never = SystemClock(), threading.Event()
    while True:
        try:
            yield ask(path)
        except control.AgentError as error:
            yield [{"socket": str(path), "error": str(error)}]
        clock.wait(never, EVERY)


def _print_lines(path: Path | None, out: Console) -> None:
    """Print for output that is read line by line: the whole answer after a change, else one line for each agent."""
    shown: Any = None
    for answers in _looks(path):
        shapes = [view.shape(body) for body in answers]
        if shapes != shown:
            out.print(picture(answers, _width(out)), soft_wrap=True)
        else:
            for body in answers:
                out.print(f"{_now():%H:%M:%S} {view.pulse(body)}", soft_wrap=True)
        shown = shapes
        sys.stdout.flush()


def picture(found: list[dict[str, Any]], width: int | None) -> RenderableType:
    """Return the answers in a form that rich prints."""
    if not found:
        return Text(NOTHING)
    shown: list[Text] = []
    for body in found:
        shown += [Text()] if shown else []
        shown += [Text(words, style) for words, style in view.lines(body, _now(), width)]
    return Group(*shown)


def _width(out: Console) -> int | None:
    """Return the width of a terminal; None for a file or a pipe."""
    return out.width if out.is_terminal else None


def _now() -> datetime:
    return datetime.now(UTC).astimezone()
