"""Notice as the process sees it that has to answer it."""

from __future__ import annotations

from dataclasses import dataclass

from ...providers.text import TEXT, clip
from .protocol import OF_A_RANK, STALL_KINDS, Preempt

#: Kind of a notice that a test makes in its own process: no agent decides what follows the commit.
BY_HAND = "test"
#: Seconds before the agent's reserve at which a save gives up, which leaves time to report why. The agent kills in
#: its reserve.
_LAST_WORDS = 0.25


@dataclass(slots=True)
class PreemptionNotice:
    """Notice that this process is answering. Two notices at once are answered as one, with the earlier deadline."""

    ids: list[str]
    #: Monotonic seconds at which the machine may be gone, and at which the save must be done.
    deadline: float
    save_by: float
    source: str
    kind: str
    drill: bool = False
    #: Whether a test made it in this process: no agent decides what follows the commit.
    by_hand: bool = False
    #: Whether training stands still in all of the job: no rank comes to a later step than it has.
    stall: bool = False
    #: What the agent knows beyond that: at a stall, the rank and the place.
    detail: str = ""
    #: The outcome of its save as the log has it; "" before the save has ended.
    outcome: str = ""
    #: The ids that the save which ended last answers; empty: all. A later notice has a save of its own.
    answered: frozenset[str] = frozenset()
    #: Monotonic seconds at which this process got it.
    seen: float = 0.0

    @classmethod
    def received(cls, message: Preempt, now: float) -> PreemptionNotice:
        """Return the notice of an agent's message, with its deadlines on this process's own clock."""
        until_reserve = message.seconds_left - message.reserve
        return cls(
            ids=[message.id],
            deadline=now + message.seconds_left,
            save_by=now + until_reserve - min(_LAST_WORDS, until_reserve / 10),
            source=message.source,
            kind=message.kind,
            drill=message.drill,
            by_hand=message.kind == BY_HAND or message.kind in OF_A_RANK,
            stall=message.kind in STALL_KINDS,
            detail=clip(message.detail, TEXT),
            seen=now,
        )

    @property
    def to_report(self) -> list[str]:
        """The ids for which the outcome of the save that ended last is reported."""
        return [id for id in self.ids if not self.answered or id in self.answered]

    def join(self, other: PreemptionNotice) -> None:
        """Merge another notice. The deadline only moves earlier, and the result is a drill only if both are."""
        self.ids = list(dict.fromkeys([*self.ids, *other.ids]))
        self.deadline = min(self.deadline, other.deadline)
        self.save_by = min(self.save_by, other.save_by)
        # An agent decides what follows; and a drill, or a stall, becomes the notice that came meanwhile.
        outdone = (self.by_hand and not other.by_hand) or (self.drill and not other.drill)
        self.drill = self.drill and other.drill
        self.stall = self.stall and other.stall
        self.detail = other.detail if outdone else self.detail or other.detail
        if outdone:
            self.kind, self.source, self.by_hand = other.kind, other.source, False
