"""The flags of `spotguard simulate gcp`, and the verbs of its scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from operator import methodcaller
from typing import Any

from ...clock import SystemClock
from ..base import common_verbs
from ..power import Power
from ..scenario import Step, Verb, count, one_of, seconds
from .faults import FAULTS
from .service import EVENTS, GcpSimulator
from .upcoming import NOTHING, SPELLINGS

__all__ = ["EPILOG", "FAULTS", "SUMMARY", "VERBS", "add_arguments", "simulator", "steps"]

SUMMARY = "Compute Engine's metadata server with instance/preempted, held requests and maintenance"

EPILOG = f"""\
a script has one line for each thing that happens, its time counted from the start:
  1s maintenance migrate
  2s upcoming in=2h as=camel
  3s fault held-503 for=5s
  10s preempt notice=120
  200s clear
verbs: preempt [notice= window= pid=], maintenance none|migrate|terminate, upcoming [in= as= status=], no-upcoming [as=],
       stop [max=], fault KIND [for= count= path=], clear
upcoming as: {", ".join(SPELLINGS)}; no-upcoming as: {", ".join(NOTHING)}
faults: {", ".join(sorted(FAULTS))}"""


def _upcoming(simulator: GcpSimulator, **settings: Any) -> None:
    # `in` and `as` are Python keywords and cannot name parameters.
    how = {"spelling": settings.get("as", "snake"), "status": settings.get("status", "PENDING")}
    simulator.plan(settings.get("in", 3600.0), **how)


VERBS: dict[str, Verb[GcpSimulator]] = {
    "preempt": Verb(GcpSimulator.preempt, settings={"notice": seconds, "window": seconds, "pid": count}),
    "maintenance": Verb(GcpSimulator.maintain, words=list(EVENTS)),
    "upcoming": Verb(_upcoming, settings={"in": seconds, "as": one_of(list(SPELLINGS)), "status": str}),
    "no-upcoming": Verb(
        lambda simulator, **settings: simulator.plan_nothing(settings.get("as", "empty")),
        settings={"as": one_of(list(NOTHING))},
    ),
    "stop": Verb(
        lambda simulator, **settings: simulator.ask_to_stop(settings.get("max", 600.0)),
        settings={"max": seconds},
    ),
    **common_verbs(FAULTS),
}


def add_arguments(parser: argparse.ArgumentParser, duration: Callable[[str], float]) -> None:
    """Add the flags that only this service has. `duration` is the type of flags that take a time."""
    parser.add_argument(
        "--preempt-after", metavar="SECONDS", type=duration, help="issue the notice then [never]"
    )
    parser.add_argument(
        "--notice",
        metavar="SECONDS",
        type=duration,
        default=0.0,
        help="press the power button this long after the notice: 0 or 120 [0]",
    )
    parser.add_argument(
        "--window",
        metavar="SECONDS",
        type=duration,
        help="end this long after the notice [30 after the button]",
    )
    parser.add_argument(
        "--pid",
        metavar="PID",
        type=int,
        help="send this process SIGTERM at the button, SIGKILL at the end",
    )
    parser.add_argument(
        "--maintenance-after",
        metavar="SECONDS",
        type=duration,
        help="announce a host event then [never]",
    )
    parser.add_argument(
        "--maintenance", choices=list(EVENTS), default="terminate", help="announce this event [terminate]"
    )
    parser.add_argument(
        "--upcoming",
        metavar="SECONDS",
        type=duration,
        help="plan maintenance this far ahead [none]",
    )
    parser.add_argument(
        "--gke", action="store_true", help="behave as GKE's own server, which hides these keys"
    )


def simulator(arguments: argparse.Namespace, tell: Callable[[str], None]) -> GcpSimulator:
    if arguments.pid is not None:
        Power(arguments.pid, SystemClock(), tell).close()  # refuse a wrong pid now, not at the notice
    made = GcpSimulator(host=arguments.host, port=arguments.port, gke=arguments.gke, tell=tell)
    # The notice duration is set when a VM is made, so the user has to pass it to the guard.
    made.try_with = f"--window {arguments.notice:g}" if arguments.notice > 30 else ""
    return made


def steps(arguments: argparse.Namespace) -> list[Step[GcpSimulator]]:
    """Return the events that the flags ask for."""
    events: list[Step[GcpSimulator]] = []
    if arguments.upcoming is not None:
        events.append(Step(0.0, methodcaller("plan", arguments.upcoming)))
    if arguments.maintenance_after is not None:
        events.append(Step(arguments.maintenance_after, methodcaller("maintain", arguments.maintenance)))
    if arguments.preempt_after is not None:
        settings = {"notice": arguments.notice, "pid": arguments.pid}
        events.append(Step(arguments.preempt_after, methodcaller("preempt", arguments.window, **settings)))
    return events
