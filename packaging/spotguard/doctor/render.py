"""The visit as a person reads it: state, check, what was found, and below what to do.

Pure: a finding and a width come in, lines go out. As `cli.status_view`: they fit 80 columns, say without colours what
colours say, and end without spaces.
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
#: What a check is called on the page, where its name alone says too little.
_CALLED = {"create": "create once"}
#: Where the words begin.
_INDENT = 24

Line = tuple[str, str]  # the words, and their style


def lines(finding: Finding, width: int | None) -> Iterator[Line]:
    """One finding, folded to `width` where there is one."""
    state, style = _STATES[finding.state]
    called = _CALLED.get(finding.check, finding.check)
    yield from _folded(f"  {state:<9}{called:<13}", finding.found, style, width)
    if finding.advice:
        # Of what is well it is a remark.
        yield from _folded(
            f"{'':<11}{'what to do':<13}",
            finding.advice,
            "" if finding.state is FindingState.OK else "bold",
            width,
        )


def last(findings: Sequence[Finding]) -> Line:
    """The page in one line."""
    failing = list(dict.fromkeys(each.check for each in findings if each.state is FindingState.FAILS))
    warnings = sum(each.state is FindingState.WARNING for each in findings)
    beside = f" ({count(warnings, 'warning')})" if warnings else ""
    known = any(each.check == "verdict" and each.facts.get("fits") for each in findings)
    if failing:
        wrong = known and set(failing) <= {"job", "verdict"}  # the script's mistake, and no machine's
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
    # Never cut inside a word: an address or a flag is to be copied.
    folded = textwrap.wrap(
        words, max(20, width - _INDENT), break_long_words=False, break_on_hyphens=False
    ) or [""]
    for number, line in enumerate(folded):
        yield f"{first if number == 0 else ' ' * _INDENT}{line}".rstrip(), style
