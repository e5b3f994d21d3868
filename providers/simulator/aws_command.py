"""`spotguard simulate aws`: its flags, and the verbs of its scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from operator import methodcaller

from .aws import ACTIONS, FAULTS, AwsSimulator
from .script import Step, Verb, one_of, seconds
from .service import common_verbs

__all__ = ["EPILOG", "FAULTS", "SUMMARY", "VERBS", "add_arguments", "simulator", "steps"]

SUMMARY = "EC2's metadata service (IMDSv2) with spot/instance-action"

EPILOG = f"""\
a script has one line for each thing that happens, its time counted from the start:
  2s rebalance
  3s fault 503 for=5s
  10s preempt window=120 action=terminate
  200s clear
verbs: preempt [window= action= skew=], rebalance, expire-tokens, fault KIND [for= count= path=], clear
faults: {", ".join(sorted(FAULTS))}"""


VERBS: dict[str, Verb[AwsSimulator]] = {
    "preempt": Verb(
        AwsSimulator.preempt, settings={"window": seconds, "action": one_of(ACTIONS), "skew": seconds}
    ),
    "rebalance": Verb(AwsSimulator.rebalance),
    "expire-tokens": Verb(AwsSimulator.expire_tokens),
    **common_verbs(FAULTS),
}


def add_arguments(parser: argparse.ArgumentParser, duration: Callable[[str], float]) -> None:
    """The flags of this service alone; `duration` is the type of those that take a time."""
    parser.add_argument(
        "--preempt-after", metavar="SECONDS", type=duration, help="issue the notice then (default: never)"
    )
    parser.add_argument(
        "--window", metavar="SECONDS", type=duration, default=120.0, help="from notice to end (default: 120)"
    )
    parser.add_argument(
        "--action", choices=ACTIONS, default="terminate", help="what becomes of it (default: terminate)"
    )
    parser.add_argument(
        "--skew", metavar="SECONDS", type=duration, default=0.0, help="AWS's clock is ahead by this much"
    )
    parser.add_argument(
        "--rebalance-after", metavar="SECONDS", type=duration, help="recommend to rebalance then"
    )
    parser.add_argument(
        "--token-ttl",
        metavar="SECONDS",
        type=duration,
        default=21600.0,
        help="the longest life of a token (default: 21600)",
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
    """What the flags say."""
    found: list[Step[AwsSimulator]] = []
    if arguments.rebalance_after is not None:
        found.append(Step(arguments.rebalance_after, AwsSimulator.rebalance))
    if arguments.preempt_after is not None:
        notice = methodcaller("preempt", arguments.window, arguments.action, skew=arguments.skew)
        found.append(Step(arguments.preempt_after, notice))
    return found
