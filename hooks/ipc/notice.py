"""A notice, as the process that it holds sees it."""

from __future__ import annotations

from dataclasses import dataclass

from .protocol import LAUNCHER, Preempt

#: The kind of a notice that a test makes in its own process: no agent will say what follows the commit.
BY_HAND = "test"
#: Seconds before the agent's reserve, where the agent kills, at which a save gives up: time to say why.
_LAST_WORDS = 0.25


@dataclass(slots=True)
class PreemptionNotice:
    """The notice that holds this process. Two notices at once are one alarm with the earlier deadline."""

    ids: list[str]
    #: Monotonic seconds: when the machine may be gone, and when the save must be done.
    deadline: float
    save_by: float
    source: str
    kind: str
    drill: bool = False
    #: Made in this process, by a test: no agent will say what follows the commit.
    by_hand: bool = False

    def join(self, other: PreemptionNotice) -> None:
        """One more notice: a deadline that is known only moves earlier, and a drill is one only where all are."""
        self.ids = list(dict.fromkeys([*self.ids, *other.ids]))
        self.deadline = min(self.deadline, other.deadline)
        self.save_by = min(self.save_by, other.save_by)
        self.drill = self.drill and other.drill
        if self.by_hand and not other.by_hand:  # an agent will say what follows
            self.kind, self.source, self.by_hand = other.kind, other.source, False


def alarm_of(notice: Preempt, now: float) -> PreemptionNotice:
    """What the agent says, on this process's own clock."""
    left = notice.seconds_left - notice.reserve
    return PreemptionNotice(
        ids=[notice.id],
        deadline=now + notice.seconds_left,
        save_by=now + left - min(_LAST_WORDS, left / 10),
        source=notice.source,
        kind=notice.kind,
        drill=notice.drill,
        by_hand=notice.kind in (BY_HAND, LAUNCHER),
    )
