"""The facts of a run, as its store has them. A fact that no record has is None or empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """A complete checkpoint."""

    step: int
    #: The time of its completion, in wall seconds by the store's clock.
    at: float
    #: Whether a notice, an error or a stall asked for it.
    emergency: bool
    #: Bytes in its own directory.
    nbytes: int


@dataclass(frozen=True, slots=True)
class FailureFact:
    """The record of a failure: why, how sure that is, and what to do. It may hold text of the user's program."""

    #: The class (`hooks.ipc.failure_classes`), what told it, and "high", "medium" or "low".
    kind: str
    evidence: tuple[str, ...]
    confidence: str
    advice: str
    error: str
    message: str
    phase: str
    where: str
    #: Files, lines and functions, the outermost first.
    stack: tuple[str, ...]
    rank: int | None
    #: Completed steps, and those of the checkpoint at which the next start resumes.
    step: int | None
    newest_checkpoint: int | None
    #: Whether the agent wrote it for a rank that was gone: `step` is the one at which the agent last saw the rank.
    by_agent: bool = False


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks with the same stack of the training thread."""

    #: As "0-2, 5".
    ranks: str
    count: int
    #: The phase, and the innermost line of the script; "" if the record has none.
    phase: str
    where: str
    #: The collective that they wait in, or why their stacks are not known; "" for neither.
    note: str
    #: A text for each thread of the first rank, the training thread's first.
    stacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StallFact:
    """One stall, by its ranks' records."""

    #: Ranks whose records were read, and those that have one.
    read: int
    ranks: int
    #: The ranks that seem to be the cause, and their place; "" if the records do not tell.
    culprit: str
    #: Who waits for whom, in words; "" if no rank is known to wait.
    waits: str
    #: The cause first.
    groups: tuple[StackGroup, ...]
    #: Groups that are left out, and their ranks.
    more: int
    more_ranks: str


@dataclass(frozen=True, slots=True)
class EventFact:
    """A record of an attempt: of a notice, of a drill, of an error, of a stall, or of the end of its script."""

    #: "notice", "drill", "error", "save" (at an error), "stall", "ended", "interrupted" or "left"; "false-error" and "false-stall" of
    #: an alarm that a person has dismissed.
    kind: str
    #: Wall seconds.
    at: float
    #: The cause in words; may hold text of the user's program.
    text: str = ""
    #: Completed steps; None if the record does not have them.
    step: int | None = None
    #: Whether its save was committed; None if it asked for no save.
    committed: bool | None = None
    #: Seconds of its save.
    seconds: float = 0.0
    #: The facts of the attempt at that moment (`hooks.checkpoint.history`).
    history: Mapping[str, Any] = field(default_factory=dict)
    #: Whether it is an error that follows from another rank's.
    follows: bool = False
    #: Whether it is an error by the record of a notice, after which training may go on all the same.
    asked: bool = False
    #: The time of the record's put, in wall seconds by the store's clock; 0 if not known.
    put: float = 0.0
    #: The id by which a person may dismiss it; "" if it is no alarm. The errors of an attempt's ranks are one alarm.
    id: str = ""
    #: The record of an error.
    failure: FailureFact | None = None
    #: The stacks of a stall; None if the store has none of it.
    stall: StallFact | None = None


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One start of the job."""

    number: int
    #: The time of its claim, in wall seconds.
    started: float | None = None
    world: int | None = None
    #: Names of its machines, perhaps not of all; and their number.
    machines: tuple[str, ...] = ()
    machine_count: int | None = None
    #: The time since when its first machine was there: Slurm's start of the job, else the machine's boot.
    available: float | None = None
    #: The facts that its newest record or checkpoint has (`hooks.checkpoint.history`).
    history: Mapping[str, Any] = field(default_factory=dict)
    #: The checkpoints that the store still has, the oldest first.
    checkpoints: tuple[CheckpointFact, ...] = ()
    #: The oldest first.
    events: tuple[EventFact, ...] = ()
    #: The time of its newest object, by the store's clock; 0 if not known.
    touched: float = 0.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything about one run."""

    store: str
    run_id: str
    attempts: tuple[AttemptFacts, ...]
    #: The history that the checkpoint of the next start carries: its attempt's facts, and `earlier`.
    history: Mapping[str, Any]
    #: Wall seconds of the reading.
    now: float
    #: The attempt and the step of the checkpoint that the next start restores; None if that is the newest one, or not known.
    resumes: tuple[int, int] | None = None


#: Nothing true in a record is larger: seconds, also those since 1970, and whole numbers. Nothing is negative.
_SECONDS, _WHOLE = 2**32, 10**15


def number(record: Mapping[str, Any], name: str) -> float | None:
    """Return the seconds that a record has under a name, or None if it has none that can be true."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value <= _SECONDS else None


def whole(record: Mapping[str, Any], name: str) -> int | None:
    """Return a whole number of a record, or None if it has none that can be true."""
    value = record.get(name)
    return value if type(value) is int and 0 <= value <= _WHOLE else None


def text(record: Mapping[str, Any], name: str) -> str:
    """Return a text of a record that any file can hold; "" if it has none."""
    value = record.get(name)
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def texts(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the texts in a list of a record."""
    value = record.get(name)
    some = value if isinstance(value, list) else []
    return tuple(text({name: each}, name) for each in some if isinstance(each, str))


def mapping(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object of a record; {} if it has none."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def entries(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in a list of a record."""
    value = record.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def known_facts(told: Iterable[tuple[float, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return facts of several dates as one: the newest counts, but one that is not known replaces none.

    Args:
        told: the facts, each with its date.
    """
    known: dict[str, Any] = {}
    for _, facts in sorted(told, key=lambda each: each[0]):
        known.update((name, value) for name, value in facts.items() if value is not None)
    return known
