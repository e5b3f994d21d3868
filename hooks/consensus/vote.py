"""What each rank offers for a save, and what is decided from the offers. Pure; one decision is made for all ranks.

The step is the latest of those that are offered: every rank offers the earliest that it can still give, and who is
behind needs only collectives that those ahead have joined already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal, get_args

from ...providers.errors import ProtocolError
from ..checkpoint.format.manifest import named
from ..ipc import typed_json

#: What is committed, and in which order.
Level = Literal["full", "weights-first", "weights-early"]

#: A doomed rank's save fits comfortably when it would even so much slower, and with the commit taking twice its
#: seconds, and a second of anything else.
_SLOWER, _COMMITS, _SPARE = 1.25, 2, 1.0


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """What the ranks of one group hold together, as one of them sees it."""

    #: Names the group; the same on all of its ranks.
    group: str
    #: How many ranks it has.
    size: int
    #: Of the names, types, shapes and places of what is shared.
    digest: str


def shared(fingerprints: Mapping[tuple[int, ...], str]) -> tuple[ReplicaGroup, ...]:
    """
    Args:
        fingerprints: by the ranks of the group.
    """
    return tuple(
        ReplicaGroup(sha256(repr(tuple(group)).encode()).hexdigest()[:16], len(group), digest)
        for group, digest in sorted(fingerprints.items())
    )


@dataclass(frozen=True, slots=True)
class Vote:
    """One rank's, made in the same act in which it shut its gate."""

    rank: int
    #: The fewest completed steps at which its state can be had. None: it has no state, before or inside `restore`.
    step: int | None
    #: It can give none but at a parked boundary that it has not come to yet: it must train with the others to get there.
    boundary: bool = False
    #: Bytes that it would write now, the roles being what they are.
    weights: int = 0
    moments: int = 0
    #: Bytes a second to the store, and seconds of a commit. None: not known yet.
    rate: float | None = None
    commit: float = 0.0
    #: Seconds that its machine has for the save. None: it is not doomed.
    left: float | None = None
    #: Step of the newest committed checkpoint that it knows, where that is complete; else -1.
    last: int = -1
    #: What it shares with others.
    plan: tuple[ReplicaGroup, ...] = ()
    #: Ranks that hold nothing which this one does not hold too.
    covers: tuple[int, ...] = ()
    #: It is held at its boundary until it has saved. Who is not goes on to its next change meanwhile.
    parks: bool = False
    #: A restore would take its weights alone, and its moments need some seconds more.
    early: bool = False

    def encode(self) -> str:
        return typed_json.encode(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks do about one call."""

    epoch: int
    #: All save this one. None: nobody saves anything, and `why` says who and what is to blame.
    step: int | None
    why: str = ""
    #: Who has answered in time, and so who saves. A rank that is not among them parks, and saves nothing.
    ranks: tuple[int, ...] = ()
    #: "weights-first": the weights are committed by themselves, and the moments follow. "weights-early": so they are, and the
    #: moments wait for nothing.
    level: Level = "full"
    #: Nobody relies on another: each writes all that it holds.
    whole_each: bool = False
    #: Some are held at their boundary, and others are not: these wait for them in the next step's collectives.
    some_park: bool = False
    #: The step of the complete checkpoint for which nothing is saved: it is as new. -1: there is none.
    stands: int = -1

    def encode(self) -> str:
        return typed_json.encode(dataclasses.asdict(self))


def decide(epoch: int, world: int, offers: Sequence[Vote]) -> Decision:
    """One decision, from the offers that are there: all of them, or those that came in time.

    Ranks that are silent are taken for dead. Training cannot go a step further without them; so those that are there
    save without them only if all stand on one step already, and hold everything that the silent ones hold, but for the
    extras of each. A complete checkpoint of that step is worth more: where there is one, nothing is saved.
    """
    there = tuple(sorted(offer.rank for offer in offers))

    def nothing(why: str) -> Decision:
        return Decision(epoch, None, why, there)

    absent = [offer.rank for offer in offers if offer.step is None]
    steps = {offer.step for offer in offers if offer.step is not None}
    if absent:
        return nothing(f"{named(absent)} of {world} has no state to save yet")
    silent = sorted(set(range(world)) - set(there))
    late = f"{named(silent)} of {world} has not answered in time" if silent else ""
    if not steps:
        return nothing(f"none of {world} ranks has answered in time")
    if silent:
        lost = [rank for rank in silent if all(rank not in offer.covers for offer in offers)]
        last = max(offer.last for offer in offers)
        if last >= max(steps):
            return replace(nothing(it_stands(late, last)), stands=last)
        if lost:
            return nothing(f"{late}, and nobody else holds the state of {named(lost)}")
        if len(steps) > 1:
            return nothing(f"{late}, and the others stand on steps {min(steps)} to {max(steps)}")
        if any(offer.boundary for offer in offers):
            behind = [offer.rank for offer in offers if offer.boundary]
            return nothing(f"{late}, and without it {named(behind)} cannot come to the next guard.step()")
    return Decision(
        epoch,
        max(steps),
        f"{late}: its extras are missing, and the others hold the rest of its state" if silent else "",
        there,
        _level(offers),
        whole_each=_differ(offers, whole=not silent),
        # (Who is silent joins no collective any more, and nobody needs to.)
        some_park=not silent and len({offer.parks for offer in offers}) > 1,
    )


def read_offer(raw: bytes | str) -> Vote:
    """
    Raises:
        ProtocolError: this is no offer.
    """
    body = typed_json.decode(raw)
    plan = body.get("plan")
    if not isinstance(plan, list) or not all(isinstance(each, dict) for each in plan):
        raise ProtocolError(f"plan must be a list of objects, not {str(plan)[:40]!r}")
    parsed = {
        "plan": tuple(typed_json.build(ReplicaGroup, each) for each in plan),
        "covers": typed_json.integers(body, "covers"),
    }
    return typed_json.build(Vote, {**body, **parsed})


def read_decision(raw: bytes | str) -> Decision:
    """
    Raises:
        ProtocolError: this is no decision.
    """
    body: dict[str, Any] = typed_json.decode(raw)
    if body.get("level") not in get_args(Level):
        raise ProtocolError(f"level is {str(body.get('level'))[:40]!r}")
    return typed_json.build(Decision, {**body, "ranks": typed_json.integers(body, "ranks")})


def it_stands(late: str, step: int) -> str:
    """Why nothing is saved where a complete checkpoint is as new.

    Args:
        late: who has not answered.
    """
    return f"{late}, and the complete checkpoint of step {step} stands"


def _level(offers: Sequence[Vote]) -> Level:
    """Commit the weights early where all fits and a machine goes: clouds break their promise."""
    if not all(map(_comfortable, offers)):
        return "weights-first"
    return "weights-early" if any(offer.early and offer.left is not None for offer in offers) else "full"


def _comfortable(offer: Vote) -> bool:
    """Of a link of which nothing is known the best is hoped: the rank's own budget cuts it down."""
    if offer.left is None or offer.rate is None:
        return True
    seconds = (offer.weights + offer.moments) / offer.rate * _SLOWER + _COMMITS * offer.commit + _SPARE
    return seconds < offer.left


def _differ(offers: Iterable[Vote], *, whole: bool) -> bool:
    """Whether ranks see differently what they share: another digest, or a group that not all of its ranks know."""
    seen: dict[str, list[ReplicaGroup]] = {}
    for offer in offers:
        for each in offer.plan:
            seen.setdefault(each.group, []).append(each)
    return any(len(set(group)) > 1 or (whole and len(group) != group[0].size) for group in seen.values())
