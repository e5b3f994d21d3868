"""`spotguard doctor [options] [-- COMMAND...]`: whether this machine would save in time, and what to do where not."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType

from rich.console import Console
from rich.text import Text

from spotguard.agent.config import parsers
from spotguard.agent.config.options import Options
from spotguard.agent.telemetry import logs
from spotguard.doctor import render
from spotguard.doctor.finding import Finding, any_fails
from spotguard.doctor.measuring import MeasureLimits
from spotguard.doctor.run import Patient, visit
from spotguard.doctor.timeouts import within
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.names import read_unlooked

from ..output import add_json, console, print_json
from ..parser import add_settings, flag_of, settings_given
from . import run as guarding
from .run import log_as, options_for, warn_of_unknown_variables

__all__ = ["DESCRIPTION", "EXAMPLES", "add_arguments", "run", "split"]

DESCRIPTION = """\
Says whether this machine would save in time: whether the cloud's notice is seen, how long it
leaves, what the store lets us do, how fast it takes bytes, and whether the registered job's state
fits. It takes the options of `run`, and speaks of that run. Exit code 1 where something fails."""

EXAMPLES = """\
examples:
  spotguard doctor
  spotguard doctor --store s3://checkpoints/gpt --run-id gpt-small-7
  spotguard doctor --window 120 --json"""

PACE = MeasureLimits()
#: Seconds for a look at the folders that were named, as `run` looks: a file server may be gone.
LOOK = 10.0
#: The last is what a terminal sends that is closed, as by an ssh that breaks off.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "spotguard doctor [options] [-- COMMAND...]"
    add_settings(parser, "run")
    add_json(parser)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """As `run` does, where a word behind the options is the command. But who says `doctor aws` means a cloud, and no program
    of that name: it is left to the parser, which refuses it."""
    ours, command = guarding.split(words)
    separated = words[len(ours) : len(ours) + 1] == ["--"]
    if command and not separated and (flag_of(command[0]) or "://" in command[0]):
        return [*ours, *command], []
    return ours, command


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    options, run_id = _options(arguments, command)
    with _logged(options):
        warn_of_unknown_variables()
        return _visit(arguments, options, run_id, command)


def _visit(arguments: argparse.Namespace, options: Options, run_id: str, command: Sequence[str]) -> int:
    who = Patient(options, run_id, SystemClock(), os.environ, os.geteuid(), command, pace=PACE)
    out = None if arguments.json else console()
    found: list[Finding] = []
    # Closed before anything else ends: what was put into the store is removed then.
    # Twice, for the one interruption may come at the very begin of the first closing.
    with _ended_in_order(), closing(visit(who)) as findings, closing(findings):
        for finding in findings:
            found.append(finding)
            if out is not None:
                _show(out, finding)
    if out is None:
        verdict = found[-1]
        answer = {"fails": any_fails(found), "fits": verdict.facts["fits"], "verdict": verdict.found}
        print_json({**answer, "checks": [each.as_json() for each in found]})
    else:
        words, style = render.last(found)
        out.print(Text(words, style), soft_wrap=True)
    return 1 if any_fails(found) else 0


def _options(arguments: argparse.Namespace, command: Sequence[str]) -> tuple[Options, str]:
    """As `run` would have them; and the run that is named, by its command too, "" where none is.

    A folder that does not answer is taken by its name: `store`, `disk` and `stage` say of it what is to be said.
    """
    given = settings_given(arguments, "run")
    resolve = partial(options_for, given, command, run_id=None if command else "")
    try:
        options = within(LOOK, SystemClock(), resolve, "options")
    except TimeoutError:
        options = resolve(readers={"store": read_unlooked, "stage": parsers.absolute_path})
    return options, options.run_id


@contextmanager
def _logged(options: Options) -> Iterator[None]:
    """As `run` logs, in lines that say whose they are. What goes well the page tells, where nobody asks for more."""
    quiet = replace(options, log_level="warning") if options.log_level == "info" else options
    handler = log_as(quiet)
    try:
        yield
    finally:
        logs.remove(handler)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Ctrl-C, SIGTERM (`timeout 30 spotguard doctor`) and SIGHUP end the visit, and what was put is removed then. That takes
    some seconds, in which a second one would leave it there: it is not heard. So it interrupts once at most, wherever it
    comes, and whoever clears begins anew where that was in its midst."""

    def leave(signum: int, frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        with suppress(OSError):  # the terminal is gone
            os.write(2, b"spotguard: removing what was put into the store\n")  # not print: it may be in one
        raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)

    # What is ignored stays so: nohup's SIGHUP, and SIGINT of who runs behind `&`.
    heard = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    before = [(each, signal.signal(each, leave)) for each in heard]
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def _show(out: Console, finding: Finding) -> None:
    for words, style in render.lines(finding, out.width if out.is_terminal else None):
        out.print(Text(words, style), soft_wrap=True)
