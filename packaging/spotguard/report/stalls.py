"""The stacks of a run's ranks while training stood still, as one fact for each stall: equal ranks together, and who waits for whom.

`reading` lists and reads the records; this module is pure. Ranks are equal if their training threads stand at the same place, and
wait in the same collective: other threads move on beside them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotguard.hooks.ipc.messages import START_WAIT
from spotguard.providers.text import NAME, TEXT, clip

from .facts import StackGroup, StallFact, mapping, number, text, texts, whole

#: Records that are read for a report, the newest stalls first; of a job of 1,024 ranks, those of two stalls.
READ = 2048
#: Stalls of a run, groups of a stall, and characters of a group's stacks that a report shows: 1.5 MB at most.
STALLS, _GROUPS, _CHARACTERS = 16, 12, 8000
#: Phases in which a rank may wait for another one.
_WAITING = ("collective", "backward", START_WAIT)
_KEY = re.compile(
    r"stalls/(?P<attempt>\d{4,15})-(?P<number>\d+|held)-(?P<rank>\d{5,15})(?:-\d+)?\.json", re.ASCII
)


@dataclass(frozen=True, slots=True)
class RankStacks:
    """One rank's record. Others may have written anything into it."""

    rank: int
    held: bool
    phase: str
    where: str
    stood: float
    #: The process group, the number and the name of the collective that it waits in or has ended last; None if not known.
    collective: tuple[str, int, str] | None
    #: Whether it waits in that one.
    inside: bool
    note: str
    stacks: tuple[str, ...]

    @classmethod
    def of(cls, rank: int, record: Mapping[str, Any]) -> RankStacks:
        told = mapping(record, "collectives")
        waits = mapping(told, "waits_in")
        newest = told.get("newest")
        last = newest[-1] if isinstance(newest, list) and newest and isinstance(newest[-1], dict) else {}
        found = waits or last
        count = whole(found, "number")
        group, name = clip(text(found, "group"), NAME), clip(text(found, "name"), NAME)
        collective = (group, count, name) if count is not None and name and not found.get("p2p") else None
        held = text(record, "by") == "agent"
        return cls(
            rank,
            held,
            clip(text(record, "phase"), NAME),
            clip(text(record, "where"), TEXT),
            number(record, "stood") or 0.0,
            collective,
            bool(waits),
            _note(record, collective, inside=bool(waits), held=held),
            _cut(texts(record, "stacks")),
        )

    @property
    def equal(self) -> tuple[object, ...]:
        """The facts that are equal for ranks that stand at one place."""
        return self.held, self.phase, self.where, self.note, self.stacks[:1]

    @property
    def place(self) -> str:
        words = "in native code" if self.held else f"in {self.phase}" if self.phase else ""
        return " ".join(filter(None, (words, self.where and f"at {self.where}")))


def _note(
    record: Mapping[str, Any], collective: tuple[str, int, str] | None, *, inside: bool, held: bool
) -> str:
    if held:
        why, waits = clip(text(record, "why"), TEXT), clip(text(record, "kernel"), TEXT)
        kernel = f"its main thread waits in the kernel at {waits}" if waits else ""
        return "; ".join(filter(None, ("no Python runs there", why, kernel)))
    if collective is None:
        return ""
    named = _named(collective)
    return f"waits in {named}" if inside else f"waits in no collective; its last one was {named}"


def _named(collective: tuple[str, int, str]) -> str:
    group, count, name = collective
    return f"{name}, number {count} of process group {group}"


@dataclass(frozen=True, slots=True)
class StacksKey:
    """The key of a record of stacks."""

    attempt: int
    rank: int
    #: Whether the agent read them from outside.
    held: bool


def parse_stacks_key(key: str) -> StacksKey | None:
    """Return the facts in the key of a record of stacks, given its part below the run; None for another key."""
    match = _KEY.fullmatch(key)
    return (
        None
        if match is None
        else StacksKey(int(match["attempt"]), int(match["rank"]), match["number"] == "held")
    )


def stall_fact(ranks: Sequence[RankStacks], listed: Collection[int], world: int | None) -> StallFact:
    """Return one stall.

    Args:
        ranks: the record of each rank that was read, in order.
        listed: the ranks that have a record, also those that were not read.
        world: the number of all ranks; None if not known.
    """
    absent = sorted(set(range(min(world or 0, 10**6))) - set(listed))
    cause = [*ranks] if world == 1 else _cause(ranks)
    numbers = {each.rank for each in cause}
    others = [each for each in ranks if each.rank not in numbers]
    if not cause and absent and ranks:
        culprit, for_whom = f"{_ranks_of(absent)}, without a record of stacks", _ranks_of(absent)
    else:
        culprit = " ".join(filter(None, (_ranks_of(numbers), cause[0].place))) if cause else ""
        for_whom = _ranks_of(numbers)
    waiting = [each for each in others if each.inside or each.phase in _WAITING]
    grouped: dict[tuple[object, ...], list[RankStacks]] = defaultdict(list)
    for each in [*cause, *others]:
        grouped[each.equal].append(each)
    groups = [*grouped.values()]
    rest = [each.rank for group in groups[_GROUPS:] for each in group]
    return StallFact(
        read=len(ranks),
        ranks=len(listed),
        culprit=culprit,
        waits=_waits(waiting, for_whom) if for_whom else "",
        groups=tuple(map(_group, groups[:_GROUPS])),
        more=len(groups[_GROUPS:]),
        more_ranks=_ranks(rest),
    )


def _cause(ranks: Sequence[RankStacks]) -> list[RankStacks]:
    """Return the ranks that the others seem to wait for; [] if nothing tells them apart.

    In this order: those in which no Python runs, those that wait for no rank, and those that are behind in their collectives.
    """
    if held := [each for each in ranks if each.held]:
        return held
    outside = [each for each in ranks if each.phase and each.phase not in _WAITING and not each.inside]
    if outside and len(outside) == len(ranks) > 1:  # none waits for another one
        longest = max(each.stood for each in outside)
        outside = [each for each in outside if each.stood > longest - 1.0]
        return outside if len(outside) < len(ranks) else []
    if outside:
        return outside
    if len(ranks) == 1:
        return [each for each in ranks if not each.inside and not each.phase]
    known = [each for each in ranks if each.collective is not None]
    counts = {each.rank: each.collective[1] for each in known if each.collective}
    if len(known) < len(ranks) or len({each.collective[0] for each in known if each.collective}) != 1:
        return []
    behind = [each for each in known if counts[each.rank] == min(counts.values())]
    return behind if len(behind) < len(known) else []


def _waits(waiting: Sequence[RankStacks], for_whom: str) -> str:
    if not waiting:
        return ""
    named = {each.collective for each in waiting if each.inside and each.collective is not None}
    place = f" in {_named(next(iter(named)))}," if len(named) == 1 else ""
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{_ranks_of(each.rank for each in waiting)} {verb}{place} for {for_whom}"


def _group(ranks: Sequence[RankStacks]) -> StackGroup:
    first = ranks[0]
    return StackGroup(
        _ranks([each.rank for each in ranks]), len(ranks), first.phase, first.where, first.note, first.stacks
    )


def _cut(stacks: Iterable[str]) -> tuple[str, ...]:
    """Return the first stacks. A stack that is too long keeps its innermost frames, at which a thread is."""
    kept, left = [], _CHARACTERS
    for each in stacks:
        if left <= 0:
            break
        head, _, frames = each.partition("\n")
        inner = frames[-left:].partition("\n")[2]
        kept.append(each if len(each) <= left else f"{clip(head, NAME)}\n  …\n{inner}")
        left -= len(each) + 1
    return tuple(kept)


def _ranks_of(numbers: Iterable[int]) -> str:
    """Return "rank 3", "ranks 0-2, 5", or "" for none."""
    found = [*numbers]
    return f"rank{'s' * (len(found) > 1)} {_ranks(found)}" if found else ""


def _ranks(numbers: Collection[int]) -> str:
    """Return numbers as ranges, "0-2, 5". More than 20 ranges are cut."""
    spans: list[list[int]] = []
    for each in sorted(numbers):
        if spans and each == spans[-1][1] + 1:
            spans[-1][1] = each
        else:
            spans.append([each, each])
    some = ", ".join(f"{low}-{high}" if high > low else str(low) for low, high in spans[:20])
    rest = sum(high - low + 1 for low, high in spans[20:])
    return f"{some} and {rest} more" if rest else some
