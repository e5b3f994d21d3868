"""`spotguard simulate CLOUD` and `spotguard simulate failure CLASS -- COMMAND`: notices and failures on demand."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spotguard.agent.config import parsers
from spotguard.agent.process.memory_counters import MemoryCounters
from spotguard.agent.process.program import find
from spotguard.hooks.recorder.failure_plan import KINDS, PLACES, VARIABLE, FailurePlan
from spotguard.providers.errors import UsageError
from spotguard.providers.simulator import cli

DESCRIPTION = """\
Serve a metadata service on loopback that behaves like the cloud's own, its faults included, and issues
notices on demand. It prints a command to try it with.

simulate failure starts your command, and lets a failure happen in it."""

EXAMPLES = (
    cli.EXAMPLES + "\n  spotguard simulate failure data --at-step 50 -- spotguard run -- python train.py"
)

FORM = (
    "expected a class and a command, as in spotguard simulate failure data --at-step 50 -- spotguard run -- python train.py; "
    f"the classes are {', '.join(KINDS)}"
)
_FAILURE = """\
Start COMMAND, and let a failure of this class happen in its training process: a real one where that is
possible. What follows shows that your job is saved, and started again as you expect."""
#: The exit code of a command that ended with 0, and in which the failure did not happen.
NOT_HAPPENED = 4
#: Places at which a class can arise, where it is not its own alone.
_MOVABLE = ("stall", "program", "killed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    failure = cli.add_arguments(parser).add_parser(
        "failure", help="a failure of your command", description=_FAILURE
    )
    failure.usage = "spotguard simulate failure CLASS [options] -- COMMAND..."
    failure.add_argument(
        "kind", metavar="CLASS", nargs="?", help="the class of the failure: data, stall, killed and others"
    )
    failure.add_argument("--at-step", metavar="N", help="fail after this many completed steps [10]")
    failure.add_argument("--rank", metavar="N", help="fail in this rank of the job [0]")
    failure.add_argument("--times", metavar="N", help="fail this often, in all starts together [1]")
    failure.add_argument(
        "--in", dest="place", metavar="PLACE", help="let it arise in data, forward, backward or optimizer"
    )


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of spotguard, and those of the command behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    if arguments.cloud != "failure":
        if command:
            raise UsageError(
                f"spotguard simulate {arguments.cloud} takes no command: start it at another prompt"
            )
        return cli.run(arguments)
    if not command or arguments.kind is None:
        raise UsageError(FORM)
    kind = parsers.one_of(*KINDS)("spotguard simulate failure", arguments.kind)
    place = KINDS[kind] if arguments.place is None else parsers.one_of(*PLACES)("--in", arguments.place)
    if place != KINDS[kind] and kind not in _MOVABLE:
        raise UsageError(f"--in {place!r}: {kind} arises in {KINDS[kind]} only; leave --in out")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kind == "host-memory" and not 0 < MemoryCounters().limit() < 0.9 * machine:
        raise UsageError(
            "host-memory would fill this machine: run it in a container, a Slurm job or a systemd scope whose memory limit is "
            "below the machine's memory"
        )
    find(command[0], os.environ)  # a clear error, if there is no such command
    with tempfile.TemporaryDirectory(prefix="spotguard-simulated-") as folder:
        plan = FailurePlan(
            kind,
            _number("--at-step", arguments.at_step, 10),
            _number("--rank", arguments.rank, 0),
            place,  # type: ignore[arg-type]
            _number("--times", arguments.times, 1, least=1),
            folder,
        )
        code = _call(command, {**os.environ, VARIABLE: plan.encode()})
        if Path(folder, "time-0").exists():
            return code
    print(
        f"spotguard: {kind} did not happen, so nothing is shown: rank {plan.rank} did not come to step {plan.step}, or its "
        f"training has no {_needed(plan)}",
        file=sys.stderr,
    )
    return code or NOT_HAPPENED


def _needed(plan: FailurePlan) -> str:
    """Return what a failure needs to arise."""
    if plan.kind == "loader-worker":
        return "DataLoader with workers (num_workers)"
    if plan.place == "data":
        return "torch DataLoader, or one whose workers are spawned"
    return (
        "spotguard.register"
        if plan.place == "optimizer"
        else "spotguard.register, or no module that it calls"
    )


def _number(flag: str, text: str | None, default: int, least: int = 0) -> int:
    return default if text is None else parsers.at_least(least)(flag, text)


def _call(command: Sequence[str], env: dict[str, str]) -> int:
    """Run the command to its end and return its exit code.

    SIGTERM and SIGHUP go on to it. The keyboard's signals reach it anyway.
    """
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(signum: int, _: object) -> None:
        for child in children:
            child.send_signal(signum)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, pass_on)
    for signum in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, lambda *_: None)
    children.append(subprocess.Popen(command, env=env))
    code = children[0].wait()
    return code if code >= 0 else 128 - code
