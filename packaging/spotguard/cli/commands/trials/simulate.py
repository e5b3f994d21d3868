"""`spotguard simulate CLOUD` and `spotguard simulate failure CLASS -- COMMAND`: notices and failures on demand."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from spotguard.agent.config import parsers
from spotguard.agent.process.memory import kills
from spotguard.agent.process.memory.counters import MemoryCounters
from spotguard.agent.process.program import find
from spotguard.hooks.recorder.failure_plan import IN_KERNEL_LOG, KINDS, LASTING, PLACES, VARIABLE, FailurePlan
from spotguard.providers.errors import UsageError
from spotguard.providers.simulator import cli

from ..guard.run import split_at

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
_FAILURE = f"""\
Start COMMAND, and let a failure of this class happen in its training process: a real one where that is
possible. What follows shows that your job is saved, and started again as you expect.

The classes are {", ".join(KINDS)}.

The run has `-simulated` behind its name, so nothing of it gets into your own."""
#: The exit code of a command that ended with 0, and in which the failure did not happen.
NOT_HAPPENED = 4
#: Places at which a class can arise, where it is not its own alone.
_MOVABLE = ("stall", "program", "killed")
#: The options of `simulate failure`, each with a value.
_WITH_VALUE = ("--at-step", "--rank", "--times", "--for", "--in")
#: Seconds between two looks whether the failure has begun.
_LOOK = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    failure = cli.add_arguments(parser).add_parser(
        "failure", help="a failure of your command", description=_FAILURE
    )
    failure.usage = "spotguard simulate failure CLASS [options] -- COMMAND..."
    failure.add_argument("kind", metavar="CLASS", nargs="?", help="the class of the failure")
    failure.add_argument("--at-step", metavar="N", help="fail after this many completed steps [10]")
    failure.add_argument("--rank", metavar="N", help="fail in this rank of the job [0]")
    failure.add_argument("--times", metavar="N", help="fail this often, in all starts together [1]")
    failure.add_argument(
        "--for",
        dest="seconds",
        metavar="SECONDS",
        help="let stopped or gpu-… last so long [30]",
    )
    failure.add_argument(
        "--in", dest="place", metavar="PLACE", help="let it arise in data, forward, backward or optimizer"
    )


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of spotguard, and those of the command: behind `--`, or behind the class of a failure and its options."""
    if words[:1] != ["failure"]:
        at = words.index("--") if "--" in words else len(words)
        return list(words[:at]), list(words[at + 1 :])
    before, rest = split_at(words[1:], _WITH_VALUE)
    if not rest or words[1 + len(before)] == "--":
        return ["failure", *before], rest
    behind, command = split_at(rest[1:], _WITH_VALUE)
    return ["failure", *before, rest[0], *behind], command


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
    if arguments.seconds is not None and kind not in LASTING:
        raise UsageError(f"--for {arguments.seconds!r}: {kind} has no duration; leave --for out")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kind == "host-memory" and not 0 < MemoryCounters().limit() < 0.9 * machine:
        raise UsageError(
            "host-memory would fill this machine: run it in a container, a Slurm job or a systemd scope whose memory limit is "
            "below the machine's memory"
        )
    find(command[0], os.environ)  # a clear error, if there is no such command
    seconds = "30" if arguments.seconds is None else arguments.seconds
    with ExitStack() as held:
        plan = FailurePlan(
            kind,
            _number("--at-step", arguments.at_step, 10),
            _number("--rank", arguments.rank, 0),
            place,  # type: ignore[arg-type]
            _number("--times", arguments.times, 1, least=1),
            held.enter_context(tempfile.TemporaryDirectory(prefix="spotguard-simulated-")),
            parsers.seconds("--for", seconds),
        )
        env = {**os.environ, VARIABLE: plan.encode()}
        if kind in IN_KERNEL_LOG:
            plan.kernel_log.touch()
            env[kills.VARIABLE] = str(plan.kernel_log)
        if kind == "stopped":
            held.enter_context(_Continuing(plan))
        # At a prompt, the agent stops with its command, so that the shell's job is stopped, and so would this process be.
        code = _call(command, env, apart=kind == "stopped")
        if plan.time(0).exists():
            return code
        if plan.rank_is("elsewhere").exists() and not plan.rank_is("here").exists():
            where = f"rank {plan.rank} trains on another machine, so {kind} is for that one"
            print(f"spotguard: {where}", file=sys.stderr)
            return code
    print(
        f"spotguard: {kind} did not happen, so nothing is shown: rank {plan.rank} did not come to step {plan.step}, or its "
        f"training has no {_needed(plan)}",
        file=sys.stderr,
    )
    return code or NOT_HAPPENED


class _Continuing(threading.Thread):
    """A thread that continues a stopped process after the plan's seconds, each time. A context manager."""

    def __init__(self, plan: FailurePlan) -> None:
        super().__init__(daemon=True)
        self._plan, self._over = plan, threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        for number in range(self._plan.times):
            while not (mark := self._plan.time(number)).exists() or not (pid := mark.read_text()):
                if self._over.wait(_LOOK):
                    return
            with _continued(int(pid)):
                self._say(f"begins, for {self._plan.seconds:g} s")
                self._over.wait(self._plan.seconds)
            self._say("is over")

    def _say(self, what: str) -> None:
        # At once, or a line of the command may come between the text and its end.
        sys.stderr.write(f"spotguard: {self._plan.kind} {what}\n")
        sys.stderr.flush()


@contextmanager
def _continued(pid: int) -> Iterator[None]:
    """Continue the process behind a stop. Its pidfd names no process that comes after it."""
    try:
        process = os.pidfd_open(pid)
    except OSError:  # it is gone already
        yield
        return
    try:
        yield
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGCONT)
    finally:
        os.close(process)


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


def _code_within(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return a child's exit code; None if it has not ended within these seconds."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    return None


def _call(command: Sequence[str], env: dict[str, str], *, apart: bool) -> int:
    """Run the command to its end and return its exit code.

    SIGTERM and SIGHUP go on to it. The keyboard's signals reach it anyway, unless it runs apart from the terminal.
    """
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(signum: int, _: object) -> None:
        for child in children:
            child.send_signal(signum)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, pass_on)
    for signum in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, pass_on if apart else lambda *_: None)
    children.append(subprocess.Popen(command, env=env, start_new_session=apart))
    while (code := _code_within(children[0], _LOOK)) is None:
        pass  # a signal that came right before the wait has its handler called here
    return code if code >= 0 else 128 - code
