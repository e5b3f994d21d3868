"""A finding: the result of one check as ok, warning or failure, in words, with advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

#: The checks, in the order of the page. The set is closed, because programs read it.
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
    "trial",
    "memory",
    "device",
    "step",
    "loader",
    "state",
    "save",
    "job",
    "checkpoint",
    "windows",
    "verdict",
]


class FindingState(StrEnum):
    OK = "ok"
    #: The machine would still save, but the user should know.
    WARNING = "warning"
    #: The machine would not save, or the doctor cannot show that it would.
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Finding:
    check: Check
    state: FindingState
    #: The result, in one line.
    found: str
    #: The user's next step; "" for none.
    advice: str = ""
    #: The result as values, for a program.
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        body = {"check": self.check, "state": str(self.state), "found": self.found, "advice": self.advice}
        return {**body, **self.facts}


def ok(check: Check, found: str, advice: str = "", **facts: Any) -> Finding:
    return Finding(check, FindingState.OK, found, advice, facts)


def warning(check: Check, found: str, advice: str = "", **facts: Any) -> Finding:
    return Finding(check, FindingState.WARNING, found, advice, facts)


def fails(check: Check, found: str, advice: str = "", **facts: Any) -> Finding:
    return Finding(check, FindingState.FAILS, found, advice, facts)


def any_fails(findings: Iterable[Finding]) -> bool:
    return any(each.state is FindingState.FAILS for each in findings)


def parted(error: Exception) -> tuple[str, str]:
    """Return an error's line in two parts: the problem, and the advice, which our messages put after a semicolon."""
    found, _, advice = " ".join(str(error).split()).partition("; ")
    return found, advice
