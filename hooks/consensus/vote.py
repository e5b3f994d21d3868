"""Votes of the ranks for a save, and the one decision from them, for all ranks. Pure.

Every rank votes for the earliest step that it can still give, and the decision is the latest of these steps. A rank that is
behind then needs only collectives that the ranks ahead have joined already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from typing import Any, Literal, get_args

from ...providers.errors import ProtocolError
from ..checkpoint.format.keys import MAX_WORLD
from ..checkpoint.format.manifest import named
from ..ipc import typed_json

#: The parts that a save commits, and their order.
Level = Literal["full", "weights-first", "weights-early"]

#: Margins within which a departing rank's save must still fit to count as comfortable: factor on the upload's seconds, factor on
#: the commit's seconds, and further seconds.
_SLOWER, _COMMITS, _SPARE = 1.25, 2, 1.0


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """The tensors that the ranks of one group share, as one of the ranks sees them."""

    #: Name of the group, the same on all of its ranks.
    group: str
    #: Number of its ranks.
    size: int
    #: Digest of the shared tensors' names, types, shapes and places.
    digest: str


def shared(fingerprints: Mapping[tuple[int, ...], str]) -> tuple[ReplicaGroup, ...]:
    """Return the replica groups of a rank.

    Args:
        fingerprints: the digest of each group's shared tensors, by the ranks of the group.
    """
    return tuple(
        ReplicaGroup(sha256(repr(tuple(group)).encode()).hexdigest()[:16], len(group), digest)
        for group, digest in sorted(fingerprints.items())
    )


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote of one rank, made in the same atomic act in which the rank shuts its gate."""

    rank: int
    #: The fewest completed steps at which the rank can give its state. None: it has no state, before or inside `restore`.
    step: int | None
    #: The rank can give its state only at a boundary that it has not reached. It must train with the others to get there.
    boundary: bool = False
    #: Bytes of weights that it would write now, by the present roles.
    weights: int = 0
    #: Bytes of moments that it would write now, by the present roles.
    moments: int = 0
    #: Bytes per second to the store. None: not known yet.
    rate: float | None = None
    #: Seconds of a commit.
    commit: float = 0.0
    #: Seconds that its machine has for the save. None: the rank is not departing.
    left: float | None = None
    #: Step of the newest committed checkpoint that the rank knows, if that one is complete; else -1.
    last: int = -1
    #: Its replica groups.
    plan: tuple[ReplicaGroup, ...] = ()
    #: Ranks that hold nothing which this rank does not hold too, as `ranges` of them. With DDP they are all ranks of the job.
    covers: tuple[range, ...] = ()
    #: The rank is parked at its boundary until it has saved. A rank that is not parked goes on to its next change.
    parks: bool = False
    #: A restore would take its weights alone, and its moments need some seconds more.
    early: bool = False
    #: The rank comes to no later step than it has: training hangs, or an error has ended it there.
    final: bool = False

    def encode(self) -> str:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        plan = [dataclasses.asdict(each) for each in self.plan]
        return typed_json.encode({**fields, "plan": plan, "covers": _as_pairs(self.covers)})


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one event, which all ranks obey."""

    epoch: int
    #: The step that all ranks save. None: no rank saves, and `why` names the rank and the cause.
    step: int | None
    why: str = ""
    #: Ranks that voted in time, and therefore save. Any other rank parks and saves nothing.
    ranks: tuple[int, ...] = ()
    #: "weights-first": the weights are committed by themselves, and the moments follow. "weights-early": the same, but the
    #: moments wait for nothing.
    level: Level = "full"
    #: Each rank writes all that it holds, and relies on no other rank.
    whole_each: bool = False
    #: Some ranks are parked at their boundary. The others wait for them in the next step's collectives.
    some_park: bool = False
    #: Step of a complete checkpoint that is as new, so that nothing is saved. -1: there is none.
    saved: int = -1

    def encode(self) -> str:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return typed_json.encode({**fields, "ranks": _as_pairs(ranges(self.ranks))})


def ranges(ranks: Iterable[int]) -> tuple[range, ...]:
    """Return ranks, in order, as ranges of neighbours: 10,000 of them are sent in 8 bytes and not in 59,000."""
    found: list[range] = []
    for rank in ranks:
        if found and found[-1].stop == rank:
            found[-1] = range(found[-1].start, rank + 1)
        else:
            found.append(range(rank, rank + 1))
    return tuple(found)


def _as_pairs(found: Sequence[range]) -> list[list[int]]:
    return [[each.start, each.stop] for each in found]


def _as_ranges(body: dict[str, Any], name: str) -> tuple[range, ...]:
    pairs = body.get(name)
    if not isinstance(pairs, list) or not all(
        isinstance(each, list) and [*map(type, each)] == [int, int] and 0 <= each[0] < each[1] <= MAX_WORLD
        for each in pairs
    ):
        raise ProtocolError(f"{name} must be a list of ranges of ranks, not {str(pairs)[:40]!r}")
    return tuple(range(*each) for each in pairs)


def decide(epoch: int, world: int, offers: Sequence[Vote]) -> Decision:
    """Return the decision from the given votes: those of all ranks, or those that came in time.

    A silent rank counts as dead, and training cannot go a step further without it. So the other ranks save only if two
    conditions hold: all of them stand on one step already, and they hold everything that the silent ranks hold. The extras of
    silent ranks are excepted. A complete checkpoint of that step is worth more: if there is one, no rank saves.

    A rank that comes to no later step, and is behind the others or in the middle of a change, counts as silent, too.
    """
    stuck = _stuck(offers)
    offers = [offer for offer in offers if offer.rank not in stuck]
    there = tuple(sorted(offer.rank for offer in offers))

    def nothing(why: str) -> Decision:
        return Decision(epoch, None, why, there)

    absent = [offer.rank for offer in offers if offer.step is None]
    steps = {offer.step for offer in offers if offer.step is not None}
    if absent:
        return nothing(f"no state to save yet on {named(absent)} of {world}")
    silent = sorted(set(range(world)) - set(there))
    mute = [rank for rank in silent if rank not in stuck]
    lates = [f"no answer in time from {named(mute)} of {world}"] * bool(mute)
    lates += [f"training stands behind the others on {named(stuck)} of {world}"] * bool(stuck)
    late = " and ".join(lates)
    if not steps and stuck:
        return nothing(f"training stands in the middle of a step on {named(stuck)} of {world}")
    if not steps:
        return nothing(f"no answer in time from any of {world} ranks [SG503]")
    if silent:
        held = {each for offer in offers for each in offer.covers}
        lost = [rank for rank in silent if not any(rank in each for each in held)]
        last = max(offer.last for offer in offers)
        if last >= max(steps):
            return replace(nothing(it_stands(late, last)), saved=last)
        if lost:
            return nothing(f"{late}, and no other rank holds the state of {named(lost)}")
        if len(steps) > 1:
            return nothing(f"{late}, and the other ranks are at steps {min(steps)} to {max(steps)}")
        if any(offer.boundary for offer in offers):
            behind = [offer.rank for offer in offers if offer.boundary]
            return nothing(f"{late}, and without it {named(behind)} cannot reach the next guard.step()")
    return Decision(
        epoch,
        max(steps),
        f"{late}: its extras are missing, and the other ranks hold the rest of its state" if silent else "",
        there,
        _level(offers),
        whole_each=_differ(offers, whole=not silent),
        # False if a rank is silent: that rank joins no collective any more, and no other rank needs to.
        some_park=not silent and len({offer.parks for offer in offers}) > 1,
    )


def _stuck(offers: Sequence[Vote]) -> list[int]:
    """Return the ranks that will not come to the step which others can give."""
    newest = max((offer.step for offer in offers if offer.step is not None and not offer.boundary), default=0)
    return [
        offer.rank
        for offer in offers
        if offer.final and offer.step is not None and (offer.boundary or offer.step < newest)
    ]


def read_offer(raw: bytes | str) -> Vote:
    """Return the vote that a rank has encoded.

    Raises:
        ProtocolError: the text is no vote.
    """
    body = typed_json.decode(raw)
    plan = body.get("plan")
    if not isinstance(plan, list) or not all(isinstance(each, dict) for each in plan):
        raise ProtocolError(f"plan must be a list of objects, not {str(plan)[:40]!r}")
    parsed = {
        "plan": tuple(typed_json.build(ReplicaGroup, each) for each in plan),
        "covers": _as_ranges(body, "covers"),
    }
    return typed_json.build(Vote, {**body, **parsed})


def read_decision(raw: bytes | str) -> Decision:
    """Return the decision that a rank has encoded.

    Raises:
        ProtocolError: the text is no decision.
    """
    body: dict[str, Any] = typed_json.decode(raw)
    if body.get("level") not in get_args(Level):
        raise ProtocolError(f"level is {str(body.get('level'))[:40]!r}")
    ranks = tuple(chain.from_iterable(_as_ranges(body, "ranks")))
    return typed_json.build(Decision, {**body, "ranks": ranks})


def it_stands(late: str, step: int) -> str:
    """Return the reason why nothing is saved, if a complete checkpoint is as new.

    Args:
        late: text that names the ranks which have not answered.
        step: step of the complete checkpoint.
    """
    return f"{late}, and the complete checkpoint of step {step} is as new"


def _level(offers: Sequence[Vote]) -> Level:
    """Return the level. If all fits and a machine goes, the weights may still be committed early: clouds break their promise."""
    if not all(map(_comfortable, offers)):
        return "weights-first"
    return "weights-early" if any(offer.early and offer.left is not None for offer in offers) else "full"


def _comfortable(offer: Vote) -> bool:
    """Return whether a rank's save fits with a margin.

    A link whose rate is not known counts as fast enough: the rank's own budget then cuts the save down.
    """
    if offer.left is None or offer.rate is None:
        return True
    seconds = (offer.weights + offer.moments) / offer.rate * _SLOWER + _COMMITS * offer.commit + _SPARE
    return seconds < offer.left


def _differ(offers: Iterable[Vote], *, whole: bool) -> bool:
    """Return whether ranks disagree on what they share: by another digest, or by a group that not all its ranks know.

    Args:
        whole: whether the votes of all ranks are there.
    """
    seen: dict[str, list[ReplicaGroup]] = {}
    for offer in offers:
        for each in offer.plan:
            seen.setdefault(each.group, []).append(each)
    return any(len(set(group)) > 1 or (whole and len(group) != group[0].size) for group in seen.values())
