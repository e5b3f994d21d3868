"""The verdict of a drill: the doctor's own sentence, from what happened instead of what was measured beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotguard.agent.fit import Fit

from .verdict import values


def fit_of(outcome: Mapping[str, Any], held: int) -> Fit | None:
    """
    Args:
        outcome: of the drill, as its JSON has it.
        held: bytes that all who are registered have to save.

    Returns:
        None where nothing of ours was to be saved: a function of `on_notice` saves by itself.
    """
    whole = outcome["committed"] is not None and outcome["level"] == "full"
    nbytes = int(outcome["bytes"]) if whole else max(held, int(outcome["bytes"]))
    if not nbytes:
        return None
    rate = outcome["rate"]
    # What it took beside its bytes: until the state stood still and the first of them left.
    beside = (
        outcome["committed"] - outcome["bytes"] / rate if whole and rate else outcome["first_byte"] or 0.0
    )
    return Fit(nbytes, rate, outcome["left"], outcome["reserve"], max(0.0, beside))


def as_json(fit: Fit) -> dict[str, Any]:
    """With the keys of the doctor's verdict."""
    return {"found": fit.verdict(), **values(fit)}
