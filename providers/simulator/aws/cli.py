"""The flags of `spotguard simulate aws`, and the verbs of its scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from operator import methodcaller

from ..base import common_verbs
from ..scenario import Step, Verb, one_of, seconds
from .maintenance import CODES
from .service import ACTIONS, FAULTS, STATES, TIMES, AwsSimulator

__all__ = ["EPILOG", "FAULTS", "SUMMARY", "VERBS", "add_arguments", "simulator", "steps"]

#: An event code and a state that are in no documentation.
_UNKNOWN = "unheard-of"

SUMMARY = "EC2's metadata service (IMDSv2), with everything in it that warns"

EPILOG = f"""\
a script has one line for each thing that happens, its time counted from the start:
  0s  termination-time garbage
  2s  rebalance
  3s  fault 503 for=5s path=spot/
  4s  maintenance system-reboot in=10m
  10s preempt window=120 action=terminate
  20s autoscaling Terminated
  200s clear
verbs: preempt [window= action= skew=], rebalance, termination-time VALUE [window=],
  maintenance CODE [in= skew=], maintenance-over completed|canceled, autoscaling STATE, expire-tokens,
  fault KIND [for= count= path=], clear
values: {", ".join(TIMES)}
codes: {", ".join((*CODES, _UNKNOWN))}
states: {", ".join((*STATES, _UNKNOWN))}
faults: {", ".join(sorted(FAULTS))}"""


def _maintenance(simulator: AwsSimulator, code: str, **settings: float) -> None:
    # `in` is a Python keyword and cannot name a parameter.
    simulator.maintenance(code, settings.get("in", 600.0), skew=settings.get("skew", 0.0))


VERBS: dict[str, Verb[AwsSimulator]] = {
    "preempt": Verb(
        AwsSimulator.preempt, settings={"window": seconds, "action": one_of(ACTIONS), "skew": seconds}
    ),
    "rebalance": Verb(AwsSimulator.rebalance),
    "termination-time": Verb(AwsSimulator.termination_time, words=TIMES, settings={"window": seconds}),
    "maintenance": Verb(_maintenance, words=(*CODES, _UNKNOWN), settings={"in": seconds, "skew": seconds}),
    "maintenance-over": Verb(AwsSimulator.maintenance_over, words=("completed", "canceled")),
    "autoscaling": Verb(AwsSimulator.autoscaling, words=(*STATES, _UNKNOWN)),
    "expire-tokens": Verb(AwsSimulator.expire_tokens),
    **common_verbs(FAULTS),
}


def add_arguments(parser: argparse.ArgumentParser, duration: Callable[[str], float]) -> None:
    """Add the flags that only this service has. `duration` is the type of flags that take a time."""
    parser.add_argument(
        "--preempt-after", metavar="SECONDS", type=duration, help="issue the notice then [never]"
    )
    parser.add_argument(
        "--window",
        metavar="SECONDS",
        type=duration,
        default=120.0,
        help="end this long after the notice [120]",
    )
    parser.add_argument(
        "--action", choices=ACTIONS, default="terminate", help="announce this action [terminate]"
    )
    parser.add_argument(
        "--skew", metavar="SECONDS", type=duration, default=0.0, help="set AWS's clock ahead by this much"
    )
    parser.add_argument(
        "--rebalance-after", metavar="SECONDS", type=duration, help="recommend a rebalance then"
    )
    parser.add_argument(
        "--termination-time",
        choices=TIMES,
        default="absent",
        help="set the older key until there is a notice [absent]",
    )
    parser.add_argument(
        "--maintenance-after", metavar="SECONDS", type=duration, help="schedule an event then"
    )
    parser.add_argument(
        "--maintenance", choices=CODES, default="instance-stop", help="schedule this event [instance-stop]"
    )
    parser.add_argument(
        "--not-before",
        metavar="SECONDS",
        type=duration,
        default=600.0,
        help="start the event this long after its announcement [600]",
    )
    parser.add_argument(
        "--scale-in-after",
        metavar="SECONDS",
        type=duration,
        help="have the group terminate the instance then",
    )
    parser.add_argument(
        "--token-ttl",
        metavar="SECONDS",
        type=duration,
        default=21600.0,
        help="limit the life of a token [21600]",
    )
    parser.add_argument("--allow-v1", action="store_true", help="answer reads without a token too")
    parser.add_argument("--keep-alive", action="store_true", help="keep connections open between requests")


def simulator(arguments: argparse.Namespace, tell: Callable[[str], None]) -> AwsSimulator:
    return AwsSimulator(
        host=arguments.host,
        port=arguments.port,
        max_ttl=arguments.token_ttl,
        v2_required=not arguments.allow_v1,
        keep_alive=arguments.keep_alive,
        tell=tell,
    )


def steps(arguments: argparse.Namespace) -> list[Step[AwsSimulator]]:
    """Return the events that the flags ask for."""
    events: list[Step[AwsSimulator]] = []
    if arguments.rebalance_after is not None:
        events.append(Step(arguments.rebalance_after, AwsSimulator.rebalance))
    if arguments.termination_time != "absent":
        events.append(
            Step(0.0, methodcaller("termination_time", arguments.termination_time, arguments.window))
        )
    if arguments.maintenance_after is not None:
        event = methodcaller("maintenance", arguments.maintenance, arguments.not_before)
        events.append(Step(arguments.maintenance_after, event))
    if arguments.scale_in_after is not None:
        events.append(Step(0.0, methodcaller("autoscaling", "InService")))
        events.append(Step(arguments.scale_in_after, methodcaller("autoscaling", "Terminated")))
    if arguments.preempt_after is not None:
        notice = methodcaller("preempt", arguments.window, arguments.action, skew=arguments.skew)
        events.append(Step(arguments.preempt_after, notice))
    return events
