"""The kept and the lost part of machine 1's work, in one line."""

from __future__ import annotations

from ..scenario import DemoPlan, Scenario


def kept(plan: DemoPlan, story: Scenario) -> str:
    """Return the demo's last line but one. It is plain about a bad result too."""
    first = story.parts[0].step
    if story.saved:
        more = f", and did {story.lost} of its steps again" if story.lost else ""
        return (
            f"KEPT: everything. Machine 1 saved step {story.resumed_at} after its notice, and machine 2 resumed from "
            f"there{more}"
        )
    return f"{_why(plan, story)}. {_remains(first, story)}"


def _why(plan: DemoPlan, story: Scenario) -> str:
    took = f"machine 1 had {plan.window:g} s after its notice, and committed nothing in them"
    if not plan.short:
        return f"NOT SAVED: {took}, and that is all the time that {plan.cloud.title} gives"
    if not (plan.link and story.nbytes):
        return f"DID NOT FIT: {took}"
    size, seconds = story.nbytes / 2**20, story.nbytes * 8 / (plan.link * 1e6)
    return f"DID NOT FIT: {took}: {size:.1f} MiB take {seconds:.3g} s at {plan.link:g} Mbit/s"


def _remains(first: int, story: Scenario) -> str:
    if not story.resumed_at:
        return f"No background checkpoint was there either: all {first} steps were lost, and trained again by machine 2"
    share = story.resumed_at / first
    return (
        f"What remained is the background checkpoint of step {story.resumed_at}, {share:.0%} of the work of machine 1; "
        f"{story.lost} steps were lost, and trained again by machine 2"
    )
