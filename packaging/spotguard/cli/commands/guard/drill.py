"""`spotguard drill`: a real emergency save on a running job, which then goes on."""

from __future__ import annotations

import argparse
from typing import Any

from spotguard.agent.config import parsers
from spotguard.agent.ipc import control
from spotguard.doctor import drill_verdict
from spotguard.doctor.checks import job
from spotguard.providers.errors import UsageError

from ...output import add_json, print_json
from ...select_agent import add_whom, the_one

DESCRIPTION = """\
Rehearse a notice on a running job: it makes a real emergency save, and continues. With --preempt the
command ends as well, as after a real notice. Without --window the drill uses the window of the run: its
--window, else that of its cloud, else the 25 s of a SIGTERM. The last line is doctor's verdict, computed
from this save.

A command without a registered process can only be rehearsed with --preempt: it gets the signal.

Exit code 0 means that a full checkpoint was committed in the window, or that such a command ended with 0.
Exit code 1 means anything else, a lower level or a mistake in the script included."""

EXAMPLES = """\
examples:
  spotguard drill
  spotguard drill --window 120 --run-id gpt-small-7
  spotguard drill --preempt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--window", metavar="SECONDS", help="rehearse this warning [the run's own]")
    parser.add_argument(
        "--preempt", action="store_true", help="end the command as well, as a real notice does"
    )
    add_whom(parser)
    add_json(parser, "one JSON object a line, as it happens")


def run(arguments: argparse.Namespace) -> int:
    given = None if arguments.window is None else parsers.seconds("--window", arguments.window)
    if given == 0:
        raise UsageError("--window '0': expected seconds above 0, as in 30")
    path, outcome = the_one(arguments), dict[str, Any]()
    status = control.status(path)
    counted, before = status["window"], status["sessions"]  # the doctor uses the same window
    if given is None and counted == 0:
        raise UsageError(
            "this run counts on no warning at all (--window 0): pass one to rehearse, as in --window 30"
        )
    if before and all(each["step"] < 0 and each["mode"] != "callback" for each in before):
        raise control.AgentError(
            f"run {before[0]['run_id']} has not begun to train, so there is nothing to save: run the drill again once "
            "`spotguard status` shows a step"
        )
    window = counted if given is None else given
    if not arguments.json:  # the outcome has it for each session
        if arguments.preempt and before:
            print(f"preempting run {', '.join(dict.fromkeys(each['run_id'] for each in before))}", flush=True)
        for attached in dict.fromkeys(each["attached"] for each in before if each["attached"]):
            print(f"attached to {attached}", flush=True)
    for body in control.drill(path, window=window, preempt=arguments.preempt):
        outcome = body.get("outcome", outcome)
        judged = drill_verdict.judge(outcome, before) if "outcome" in body else None
        if arguments.json:
            print_json(body if judged is None else {**body, "verdict": judged.as_json()}, indent=None)
        else:
            print(_line(body), flush=True)
            if judged is not None:
                print(f"verdict: {judged.verdict()}", flush=True)
                if judged.advice():
                    print(f"what to do: {judged.advice()}", flush=True)
    full = outcome.get("committed") is not None and outcome.get("level") == "full"
    return 0 if outcome.get("ended_well") or (full and not job.misuse(before)) else 1


def _line(body: dict[str, Any]) -> str:
    if "outcome" in body:
        return str(body["outcome"]["line"])
    return f"{body['after']:7.2f} s  {body['text']}"
