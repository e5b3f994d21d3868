"""`spotguard simulate CLOUD`: a metadata service on loopback, for a user at a terminal.

Each cloud has one module with its flags, its simulator and its steps. This module has the parts that they share.
"""

from __future__ import annotations

import argparse
import queue
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, Protocol

from ..clock import Clock, SystemClock
from ..errors import UsageError
from .aws import cli as aws_cli
from .azure import cli as azure_cli
from .base import Simulator
from .faults import Spoil
from .gcp import cli as gcp_cli
from .scenario import Step, Verb, read_script, seconds

SUMMARY = "a faithful metadata service on loopback that issues notices on demand"

EXAMPLES = """\
examples:
  spotguard simulate aws --preempt-after 10
  spotguard simulate aws --preempt-after 10 --action hibernate --fault 503
  spotguard simulate aws --port 1338 --script notices.txt
  spotguard simulate gcp --preempt-after 10 --notice 120
  spotguard simulate azure --preempt-after 10 --of all"""


class SimulatedCloud(Protocol):
    """The whole interface of a cloud's module."""

    #: The cloud's line in `--help`.
    SUMMARY: str
    #: The text below the options of `--help`.
    EPILOG: str

    @property
    def FAULTS(self) -> Mapping[str, Spoil]:
        """Return the cloud's faults, by name."""
        ...

    @property
    def VERBS(self) -> Mapping[str, Verb[Any]]:
        """Return the verbs of the cloud's scripts, `base.common_verbs` included."""
        ...

    def add_arguments(self, parser: argparse.ArgumentParser, duration: Callable[[str], float], /) -> None:
        """Add the flags that only this service has. `duration` is the type of flags that take a time."""
        ...

    def simulator(self, arguments: argparse.Namespace, tell: Callable[[str], None], /) -> Simulator:
        """Return the service that the flags describe, not started yet."""
        ...

    def steps(self, arguments: argparse.Namespace, /) -> Sequence[Step[Any]]:
        """Return the events that the cloud's own flags ask for, in any order."""
        ...


#: The module of each cloud. A new cloud adds one line here.
CLOUDS: Mapping[str, SimulatedCloud] = {"aws": aws_cli, "gcp": gcp_cli, "azure": azure_cli}

#: Signals that end the simulator, besides `--for`.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Add a subcommand with its flags for each cloud. Return the group of them, for a caller that has more."""
    clouds = parser.add_subparsers(dest="cloud", metavar="CLOUD")
    for name, module in CLOUDS.items():
        shown = argparse.RawDescriptionHelpFormatter
        one = clouds.add_parser(
            name, help=module.SUMMARY, description=module.SUMMARY, epilog=module.EPILOG, formatter_class=shown
        )
        one.add_argument("--host", default="127.0.0.1", help="listen on 127.0.0.1 or ::1 [127.0.0.1]")
        one.add_argument("--port", type=_port, default=0, help="listen on this port; 0 picks a free one [0]")
        one.add_argument(
            "--for",
            dest="lifetime",
            metavar="SECONDS",
            type=_duration,
            help="end after this time [on Ctrl-C]",
        )
        module.add_arguments(one, _duration)
        kinds = sorted(module.FAULTS)
        one.add_argument(
            "--fault",
            metavar="KIND",
            action="append",
            choices=kinds,
            help="misbehave in this way; repeatable",
        )
        one.add_argument("--script", metavar="FILE", help="play this script, see below")
    return clouds


def run(arguments: argparse.Namespace, *, clock: Clock | None = None) -> int:
    """Serve until Ctrl-C, SIGTERM or the end of `--for`.

    Raises:
        UsageError: no cloud was named, or a flag or the script cannot be used.
    """
    if arguments.cloud is None:
        *others, last = CLOUDS
        raise UsageError(
            f"which cloud? Expected {', '.join(others)} or {last}, as in spotguard simulate {others[0]}"
        )
    clock = clock or SystemClock()
    say = _Teller(clock)
    module = CLOUDS[arguments.cloud]
    steps = _steps(module, arguments)
    simulator = module.simulator(arguments, say)
    with _ending() as ending:
        endpoint = simulator.start()
        try:
            print(f"endpoint: {endpoint}")
            words = ["spotguard run --provider", arguments.cloud, "--metadata-endpoint", endpoint]
            words += [simulator.try_with] if simulator.try_with else []
            print(f"try it:   {' '.join(words)} -- python train.py", flush=True)
            say.begin()
            _play(simulator, steps, arguments.lifetime, say, ending)
        finally:
            simulator.stop()
    answered = len(simulator.requests)
    say("ended; 1 request was answered" if answered == 1 else f"ended; {answered} requests were answered")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the simulator as a command of its own: `python -m spotguard.providers.simulator.cli aws --preempt-after 10`."""
    parser = argparse.ArgumentParser(prog="simulate", description=SUMMARY, allow_abbrev=False)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except UsageError as error:
        print(f"simulate: error: {error}", file=sys.stderr)
        return 2


class _Teller:
    """A printer of events, each line with the seconds since the start. Several threads may call it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.start = clock.monotonic()

    def begin(self) -> None:
        self.start = self.clock.monotonic()

    @property
    def elapsed(self) -> float:
        return self.clock.monotonic() - self.start

    def __call__(self, line: str) -> None:
        # One write for each line, so that two threads' lines do not mix.
        sys.stdout.write(f"{self.elapsed:8.1f} s  {line}\n")
        sys.stdout.flush()


def _steps(module: SimulatedCloud, arguments: argparse.Namespace) -> list[Step[Any]]:
    """Return the steps of the flags and the script, by time. At one instant faults come first and the script last."""
    steps: list[Step[Any]] = [Step(0.0, methodcaller("fault", kind)) for kind in arguments.fault or ()]
    steps += module.steps(arguments)
    if arguments.script is not None:
        steps += read_script(arguments.script, module.VERBS)
    return sorted(steps, key=lambda step: step.at)


def _play(
    simulator: Simulator,
    steps: Sequence[Step[Any]],
    lifetime: float | None,
    say: _Teller,
    ending: queue.SimpleQueue[int],
) -> None:
    """Take each step at its time, until a signal or the end of the lifetime."""
    pending = list(steps)
    reported: float | None = None
    while True:
        moments: list[tuple[float, str]] = []
        if pending:
            moments.append((pending[0].at, "step"))
        deadline = simulator.deadline
        if deadline is not None and deadline != reported:
            moments.append((deadline - say.start, "gone"))
        if lifetime is not None:
            moments.append((lifetime, "end"))
        at, what = min(moments, default=(None, "end"))
        if _signalled(ending, None if at is None else at - say.elapsed) or what == "end":
            return
        if what == "gone":
            reported = deadline
            say("the deadline: a real instance is gone now")
        else:
            pending.pop(0).do(simulator)


def _signalled(ending: queue.SimpleQueue[int], timeout: float | None) -> bool:
    try:
        ending.get(timeout=None if timeout is None else max(timeout, 0.0))
    except queue.Empty:
        return False
    return True


@contextmanager
def _ending() -> Iterator[queue.SimpleQueue[int]]:
    """Yield a queue that receives SIGINT and SIGTERM.

    It is a SimpleQueue because its `put` is reentrant (the queue module's page): a handler may call it during `get`. An
    Event's `set` may not interrupt its `wait`.
    """
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    handlers = {number: signal.signal(number, lambda n, frame: arrived.put(n)) for number in _SIGNALS}
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _duration(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: expected 0 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
