"""What one look found: well, not quite, or not at all; in words, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

#: What is looked at, in the order of the page. A closed set: programs read it.
Check = Literal[
    "cloud",
    "notices",
    "agent",
    "start",
    "window",
    "store",
    "disk",
    "put",
    "create",
    "get",
    "list",
    "delete",
    "credentials",
    "clock",
    "rate",
    "remains",
    "stage",
    "job",
    "checkpoint",
    "verdict",
]


class FindingState(StrEnum):
    OK = "ok"
    #: It would save all the same; somebody should know.
    WARNING = "warning"
    #: It would not, or nobody can say that it would.
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Finding:
    check: Check
    state: FindingState
    #: One line: what was found.
    found: str
    #: What to do; "" where nothing is.
    advice: str = ""
    #: The same in values, for a program.
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        said = {"check": self.check, "state": str(self.state), "found": self.found, "advice": self.advice}
        return {**said, **self.facts}


def ok(check: Check, found: str, advice: str = "", **facts: Any) -> Finding:
    return Finding(check, FindingState.OK, found, advice, facts)


def warning(check: Check, found: str, advice: str = "", **facts: Any) -> Finding:
    return Finding(check, FindingState.WARNING, found, advice, facts)


def fails(check: Check, found: str, advice: str = "", **facts: Any) -> Finding:
    return Finding(check, FindingState.FAILS, found, advice, facts)


def any_fails(findings: Iterable[Finding]) -> bool:
    return any(each.state is FindingState.FAILS for each in findings)


def parted(error: Exception) -> tuple[str, str]:
    """An error's one line in two: what was met, and the way out, which our messages put behind a semicolon."""
    found, _, advice = " ".join(str(error).split()).partition("; ")
    return found, advice
