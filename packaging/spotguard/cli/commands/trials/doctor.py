"""`spotguard doctor [options] [-- COMMAND...]`: report whether this machine would save in time, and the remedy if not."""

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
from spotguard.attach import variables
from spotguard.doctor import render
from spotguard.doctor.finding import Finding, any_fails
from spotguard.doctor.rate_measurement import MeasureLimits
from spotguard.doctor.run import Patient, visit
from spotguard.doctor.timeouts import within
from spotguard.doctor.trial.harness import LIMIT, STEPS, TrialRequest
from spotguard.prove.series import FEWEST_STEPS
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.names import read_unlooked

from ...output import add_json, console, print_json
from ...parser import add_settings, flag_of, settings_given
from ..guard import run as guarding
from ..guard.run import log_as, options_for, warn_of_unknown_variables
from .prove import (
    LEAST_TIMEOUT,
    WITH_VALUE,
    add_directory,
    copy_limit,
    kept_folder,
    original_of,
    refuse_run,
    whole,
)

__all__ = ["DESCRIPTION", "EXAMPLES", "add_arguments", "run", "split"]

DESCRIPTION = """\
Check that this machine can save in time: notices, the window, permissions and speed of the store, and
the size of the registered job. It takes the options of `run`, and checks that run. With --trial it also
trains a few steps of COMMAND in a copy of this directory, and saves as at a notice. Exit code 1 means that
something fails."""

EXAMPLES = """\
examples:
  spotguard doctor
  spotguard doctor --store s3://checkpoints/gpt --run-id gpt-small-7
  spotguard doctor --window 120 --json
  spotguard doctor --trial --store s3://checkpoints/gpt -- python train.py"""

FORM = (
    "--trial trains a few steps of the command, which is missing: use spotguard doctor --trial [options] -- COMMAND, as in "
    "spotguard doctor --trial -- python train.py"
)

#: Options that need `--trial`.
_OF_TRIAL = ("--steps", "--timeout", "--link", "--copy-limit", "--folder")
PACE = MeasureLimits()
#: Seconds that checking the configured directories may take, as `run` checks them: their file server may be gone.
LOOK = 10.0
#: Signals that end the visit. A terminal sends SIGHUP when it closes, for example when an ssh connection breaks.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "spotguard doctor [options] [-- COMMAND...]"
    trial = parser.add_argument_group("trial")
    trial.add_argument("--trial", action="store_true", help="train a few steps of COMMAND, and measure them")
    trial.add_argument("--steps", metavar="N", help=f"train this many steps [{STEPS}]")
    trial.add_argument(
        "--timeout", metavar="SECONDS", help=f"end at the first step after this time [{LIMIT:g}]"
    )
    add_directory(trial)
    add_settings(parser, "run")
    add_json(parser)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split as `run` does, where a word after the options begins the command.

    `doctor aws` means a cloud, and no program of that name. So such a word is left to the parser, which refuses it.
    """
    ours, command = guarding.split(words, WITH_VALUE | {"--steps", "--timeout"})
    separated = words[len(ours) : len(ours) + 1] == ["--"]
    if command and not separated and (flag_of(command[0]) or "://" in command[0]):
        return [*ours, *command], []
    return ours, command


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    trial = _trial(arguments, command)
    options, run_id = _options(arguments, command)
    with _logged(options):
        warn_of_unknown_variables()
        env = {**os.environ, **variables(os.environ)} if options.attach else os.environ
        patient = Patient(options, run_id, SystemClock(), env, os.geteuid(), command, pace=PACE, trial=trial)
        return _visit(patient, as_json=arguments.json)


def _trial(arguments: argparse.Namespace, command: Sequence[str]) -> TrialRequest | None:
    """Return the request for a trial; None without `--trial`.

    Raises:
        UsageError: an option, or the command, cannot be used.
    """
    if not arguments.trial:
        given = [
            flag for flag in _OF_TRIAL if getattr(arguments, flag.strip("-").replace("-", "_")) is not None
        ]
        if given:
            raise UsageError(f"{given[0]} is an option of a trial: add --trial, or leave it out")
        return None
    if not command:
        raise UsageError(FORM)
    refuse_run(command, "doctor --trial")
    limit = LIMIT if arguments.timeout is None else parsers.seconds("--timeout", arguments.timeout)
    if limit < LEAST_TIMEOUT:
        raise UsageError(
            f"--timeout {arguments.timeout!r}: expected {LEAST_TIMEOUT:g} seconds or more, for torch takes some to start"
        )
    return TrialRequest(
        original=original_of(arguments),
        steps=whole("--steps", arguments.steps, STEPS, FEWEST_STEPS),
        limit=limit,
        most=copy_limit(arguments),
        folder=kept_folder(arguments.folder),
    )


def _visit(patient: Patient, *, as_json: bool) -> int:
    out = None if as_json else console()
    reported: list[Finding] = []
    # Closing `findings` removes the doctor's objects from the store, so it comes before anything else ends.
    # `findings` is closed twice, because the one interruption may come at the very beginning of the first close.
    with _ended_in_order(), closing(visit(patient)) as findings, closing(findings):
        for finding in findings:
            reported.append(finding)
            if out is not None:
                _show(out, finding)
    if out is None:
        verdict = reported[-1]
        answer = {"fails": any_fails(reported), "fits": verdict.facts["fits"], "verdict": verdict.found}
        print_json({**answer, "checks": [each.as_json() for each in reported]})
    else:
        words, style = render.last(reported)
        out.print(Text(words, style), soft_wrap=True)
    return 1 if any_fails(reported) else 0


def _options(arguments: argparse.Namespace, command: Sequence[str]) -> tuple[Options, str]:
    """Return the options as `run` would have them, and the run id.

    The run id may come from the command. It is "" if there is neither a run id nor a command. A directory that does not answer is
    accepted unchecked: the checks `store`, `disk` and `stage` report on it.
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
    """Log as `run` does, in lines that name their origin.

    At the default level, only warnings are logged: the findings already report each success.
    """
    quiet = replace(options, log_level="warning") if options.log_level == "info" else options
    handler = log_as(quiet)
    try:
        yield
    finally:
        logs.remove(handler)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """End the visit in order on Ctrl-C, SIGTERM (`timeout 30 spotguard doctor`) or SIGHUP.

    The end removes the doctor's objects from the store, which takes some seconds. A second signal would leave objects there,
    so it is ignored. At most one interruption comes, at any point. If it comes during the removal, the removal starts again.
    """

    def leave(signum: int, frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        with suppress(OSError):  # the terminal is gone
            # os.write and not print: the signal may have interrupted a print.
            os.write(2, b"spotguard: removing what was put into the store\n")
        raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)

    # An ignored signal stays ignored: SIGHUP under nohup, and SIGINT of a background job (`&`).
    handled = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    before = [(each, signal.signal(each, leave)) for each in handled]
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def _show(out: Console, finding: Finding) -> None:
    for words, style in render.lines(finding, out.width if out.is_terminal else None):
        out.print(Text(words, style), soft_wrap=True)
