"""The findings as lines for a terminal: state, check and result, and the advice below.

Pure functions from a finding and a width to lines. As in `cli.status.view`, the lines fit 80 columns, need no colours to be
understood, and have no trailing spaces.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from spotguard.providers.text import count

from .finding import Finding, FindingState

_STATES = {
    FindingState.OK: ("ok", "green"),
    FindingState.WARNING: ("warning", "yellow"),
    FindingState.FAILS: ("FAILS", "bold red"),
}
#: Labels of the checks whose name alone is unclear.
_CALLED = {"create": "create once"}
#: Column of the text.
_INDENT = 24

Line = tuple[str, str]  # the text, and its style


def lines(finding: Finding, width: int | None) -> Iterator[Line]:
    """Yield the lines of one finding, folded to `width` if it is given."""
    state, style = _STATES[finding.state]
    called = _CALLED.get(finding.check, finding.check)
    yield from _folded(f"  {state:<9}{called:<13}", finding.found, style, width)
    if finding.advice:
        # Not bold after an ok: there the advice is only a remark.
        yield from _folded(
            f"{'':<11}{'what to do':<13}",
            finding.advice,
            "" if finding.state is FindingState.OK else "bold",
            width,
        )


def last(findings: Sequence[Finding]) -> Line:
    """Return the one line that sums up all findings."""
    failing = list(dict.fromkeys(each.check for each in findings if each.state is FindingState.FAILS))
    warnings = sum(each.state is FindingState.WARNING for each in findings)
    beside = f" ({count(warnings, 'warning')})" if warnings else ""
    known = any(each.check == "verdict" and each.facts.get("fits") for each in findings)
    if failing == ["trial"]:
        return f"Not known whether this machine would save in time: trial{beside}", "bold red"
    if failing:
        wrong = known and set(failing) <= {"job", "verdict"}  # a mistake of the script, not of the machine
        what = "save in time, and NOT what a resumed run needs" if wrong else "NOT save in time"
        return f"This machine would {what}: {', '.join(failing)}{beside}", "bold red"
    words = (
        "This machine would save in time"
        if known
        else "Nothing fails, and what is to be saved is not known yet"
    )
    return f"{words}{beside}", "bold green"


def _folded(first: str, words: str, style: str, width: int | None) -> Iterator[Line]:
    if width is None:
        yield f"{first}{words}".rstrip(), style
        return
    # Words are never cut, because users copy addresses and flags.
    folded = textwrap.wrap(
        words, max(20, width - _INDENT), break_long_words=False, break_on_hyphens=False
    ) or [""]
    for number, line in enumerate(folded):
        yield f"{first if number == 0 else ' ' * _INDENT}{line}".rstrip(), style
