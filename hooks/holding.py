"""What a rank holds that others may hold too: who can be done without, and who not.

Told once, at register, by all to all: of a rank that has died nobody can ask any more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .agreement.channel import Channel
from .state.registered import State

#: Seconds in which all ranks come to it: they have just met.
_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Holding:
    """Of one rank."""

    #: Registered names.
    parts: frozenset[str]
    #: The groups of ranks with whom it holds the same, each by its ranks.
    groups: frozenset[tuple[int, ...]]
    #: It has tensors that nobody else has. (Its generators do not count: they are lost with it.)
    alone: bool

    def within(self, other: Holding) -> bool:
        """Whether the other has all that this one has."""
        return not self.alone and self.parts <= other.parts and self.groups <= other.groups


def holding(state: State) -> Holding:
    """This rank's, as it is now."""
    groups = frozenset(state.fingerprint())
    return Holding(frozenset(part.name for part in state.parts), groups, state.alone())


def gather_holdings(channel: Channel, state: State) -> list[Holding]:
    """Everybody's. On the training thread, of all ranks at once."""
    mine = holding(state)
    card = {"parts": sorted(mine.parts), "groups": sorted(mine.groups), "alone": mine.alone}
    cards = [json.loads(each) for each in channel.gather(json.dumps(card).encode(), _PATIENCE)]
    return [
        Holding(frozenset(each["parts"]), frozenset(map(tuple, each["groups"])), bool(each["alone"]))
        for each in cards
    ]
