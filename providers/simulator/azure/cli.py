"""The flags of `spotguard simulate azure`, and the verbs of its scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from ..base import common_verbs
from ..scenario import Step, Verb, one_of, seconds
from .service import FAULTS, OF, WINDOWS, AzureSimulator

__all__ = ["EPILOG", "FAULTS", "SUMMARY", "VERBS", "add_arguments", "simulator", "steps"]

SUMMARY = "Azure's metadata service with Scheduled Events, for one machine of a scale set"

EPILOG = f"""\
a script has one line for each thing that happens, its time counted from the start:
  5s preempt of=other
  6s fault 410 for=70s
  90s preempt window=30 of=all
  125s finish
verbs: preempt [window= skew= of=], schedule KIND [window= skew= of=], fail, begin, cancel, finish,
  fault KIND [for= count= path=], clear
of: {", ".join(OF)}
kinds: {", ".join(kind.lower() for kind in WINDOWS)}
faults: {", ".join(sorted(FAULTS))}"""

_WHEN: Mapping[str, Callable[[str], Any]] = {"window": seconds, "skew": seconds, "of": one_of(OF)}


def _schedule(simulator: AzureSimulator, kind: str, **settings: Any) -> None:
    simulator.schedule(kind.title(), settings.pop("window", None), **settings)


VERBS: dict[str, Verb[AzureSimulator]] = {
    "preempt": Verb(AzureSimulator.preempt, settings=_WHEN),
    "schedule": Verb(_schedule, words=[kind.lower() for kind in WINDOWS], settings=_WHEN),
    "fail": Verb(AzureSimulator.fail),
    "begin": Verb(AzureSimulator.begin),
    "cancel": Verb(AzureSimulator.cancel),
    "finish": Verb(AzureSimulator.finish),
    **common_verbs(FAULTS),
}


def add_arguments(parser: argparse.ArgumentParser, duration: Callable[[str], float]) -> None:
    """Add the flags that only this service has. `duration` is the type of flags that take a time."""
    parser.add_argument(
        "--preempt-after", metavar="SECONDS", type=duration, help="issue the notice then [never]"
    )
    parser.add_argument(
        "--window", metavar="SECONDS", type=duration, default=30.0, help="end this long after the notice [30]"
    )
    parser.add_argument(
        "--of", choices=OF, default="us", help="announce the end of this machine, another, or all [us]"
    )
    parser.add_argument(
        "--skew", metavar="SECONDS", type=duration, default=0.0, help="set Azure's clock ahead by this much"
    )
    parser.add_argument(
        "--enabling",
        metavar="SECONDS",
        type=duration,
        default=3.0,
        help="answer the first call after this time; real: up to 120 [3]",
    )
    parser.add_argument(
        "--vm-name",
        metavar="NAME",
        default="pool-vmss_12",
        help="set this machine's name [pool-vmss_12]",
    )
    parser.add_argument(
        "--others", metavar="N", type=_machines, default=3, help="add other machines to the set [3]"
    )
    parser.add_argument("--capitals", action="store_true", help="write names in events in capital letters")
    parser.add_argument(
        "--dates",
        choices=("rfc1123", "iso"),
        default="rfc1123",
        help="write dates in this form [rfc1123]",
    )
    parser.add_argument("--new-ids", action="store_true", help="give an event another id once it has started")


def _machines(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of machines: expected 1 to 1000")
    return int(text)


def simulator(arguments: argparse.Namespace, tell: Callable[[str], None]) -> AzureSimulator:
    return AzureSimulator(
        host=arguments.host,
        port=arguments.port,
        vm_name=arguments.vm_name,
        others=arguments.others,
        enabling=arguments.enabling,
        dates=arguments.dates,
        new_ids=arguments.new_ids,
        capitals=arguments.capitals,
        tell=tell,
    )


def steps(arguments: argparse.Namespace) -> list[Step[AzureSimulator]]:
    """Return the events that the flags ask for."""
    if arguments.preempt_after is None:
        return []
    notice = methodcaller("preempt", arguments.window, skew=arguments.skew, of=arguments.of)
    return [Step(arguments.preempt_after, notice)]
