"""The proof as text for a person, and as JSON for a program. Pure: a proof comes in, lines or values go out.

The rules are those of the doctor's page: lines fit 80 columns, need no colours to be understood, and have no trailing spaces.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from spotguard.providers.text import ago, amount, count

from .compare import Difference
from .proof import EXIT_CODES, Proof, ProofVerdict, Resumed

#: The column at which a row's text begins.
_INDENT = 17
_STYLES = {
    ProofVerdict.EXACT: "bold green",
    ProofVerdict.INEXACT: "bold red",
    ProofVerdict.UNSURE: "bold yellow",
}
#: The most causes that the page prints.
_MOST_CAUSES = 3

Line = tuple[str, str]  # the text, and its style

_SUMS = {
    ProofVerdict.EXACT: "a preempted run resumes with the bits of an uninterrupted one",
    ProofVerdict.INEXACT: "a resumed run trains something else",
    ProofVerdict.UNSURE: "a resume cannot be judged",
}
_ENDED = {
    "notice": "noticed through `spotguard run` after",
    "preempt": "preempted after",
    "kill": "killed after",
}


def lines(proof: Proof, command: Sequence[str], width: int | None) -> Iterator[Line]:
    """Yield the page's lines, folded to `width` if it is given."""
    for name, words, style in _rows(proof, command):
        yield from _row(name, words, width, style)
    yield (
        f"{proof.verdict}: {_SUMS[proof.verdict]}{_why_unsure(proof)}{_untried(proof)}",
        _STYLES[proof.verdict],
    )


def _rows(proof: Proof, command: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    yield "command", " ".join(command), ""
    yield "compared", _compared(proof), ""
    for name, group in groupby(proof.resumed, key=lambda each: each.series):
        resumed = list(group)
        differs = bool(resumed[-1].differences or resumed[-1].failed)
        yield name, _series(resumed), "bold red" if differs else ""
    if proof.resumed and proof.not_tried:
        farther = "" if proof.own_end else "; a run of more --steps may have them"
        yield (
            "not tried",
            f"{', '.join(proof.not_tried)}: no step from 2 to {proof.steps - 1} has them{farther}",
            "",
        )
    if proof.passed_over:
        yield "not tried", f"{', '.join(proof.passed_over)}: each save came at a boundary behind it", ""
    if proof.unsteady:
        yield "left out", f"{_some(proof.unsteady)}: different in each run by itself", ""
    if proof.not_saved:
        yield (
            "not saved",
            f"{_some(proof.not_saved)}: starts over after a resume; no compared value depends on it",
            "",
        )
    if proof.own_files:
        yield (
            "own files",
            f"a resumed run reads {_some(proof.own_files)} again: another machine does not have it",
            "",
        )
    if proof.files_differ:
        yield (
            "files differ",
            f"{_some(proof.files_differ)}: another content than in an undisturbed run; keep what decides it, such as a best value, "
            "in registered state",
            "",
        )
    if not proof.watched:
        yield "files", "opened before register: not known, for this Python reads no sitecustomize", ""
    if proof.trouble:
        yield "variables", f"not looked at: {proof.trouble}", ""
    yield from _why(proof)
    if proof.kept:
        yield "kept", proof.kept, ""


def _why(proof: Proof) -> Iterator[tuple[str, str, str]]:
    if proof.leaks:
        yield "shared files", f"one run has written what another one has read: {_some(proof.leaks)}", "bold"
        yield (
            "what to do",
            "name files by paths below the working directory. Of a cache that is filled now: prove it again",
            "",
        )
    if proof.differences:
        yield "differs first", _first(proof), "bold"
    for number, cause in enumerate(proof.causes[:_MOST_CAUSES]):
        yield "or" if number else "likely cause", cause.text, "" if number else "bold"
        yield "what to do", cause.mend, ""
    if proof.verdict is not ProofVerdict.EXACT and not proof.causes and not proof.leaks:
        yield "likely cause", "not known: nothing in the two records speaks for one", "bold"


def as_json(proof: Proof, command: Sequence[str]) -> dict[str, Any]:
    """Return the proof as plain JSON."""
    return {
        "verdict": str(proof.verdict),
        "exit_code": EXIT_CODES[proof.verdict],
        "command": list(command),
        "steps": proof.steps,
        "ranks": proof.world,
        "registered": dict(proof.kinds),
        "inputs": proof.seen.get("input", 0),
        "losses": proof.seen.get("loss", 0),
        "resumed": [_resumed_json(each) for each in proof.resumed],
        "differs_in": proof.where,
        "differences": [_difference_json(each) for each in proof.differences],
        "causes": [{"id": each.id, "cause": each.text, "what_to_do": each.mend} for each in proof.causes],
        "shared_files": list(proof.leaks),
        "own_files": list(proof.own_files),
        "not_tried": [*proof.not_tried, *proof.passed_over],
        "left_out": list(proof.unsteady),
        "not_saved": list(proof.not_saved),
        "files_differ": list(proof.files_differ),
        "files_watched": proof.watched,
        "variables_trouble": proof.trouble,
        "lives": proof.lives,
        "seconds": round(proof.seconds, 1),
        "copy_bytes": proof.copy_bytes,
        "copy_shares_blocks": proof.shares_blocks,
        "kept": proof.kept,
    }


def _resumed_json(each: Resumed) -> dict[str, Any]:
    return {
        "series": each.series,
        "ended_by": each.ended_by,
        "ended_at": each.ended_at,
        "place": each.place,
        "resumed_at": each.begin,
        "compared_to": each.last,
        "exact": not (each.differences or each.failed),
        "failed": each.failed,
    }


def _difference_json(each: Difference) -> dict[str, Any]:
    return {
        "step": each.step,
        "rank": each.rank,
        "kind": each.kind,
        "name": each.name,
        "undisturbed": each.plain,
        "other": each.other,
        "right_after_restore": each.restored,
    }


def _compared(proof: Proof) -> str:
    kinds = ", ".join(f"{name} ({kind})" for name, kind in proof.kinds.items())
    end = ", to the script's own end" if proof.own_end else ""
    ranks = f" of {count(proof.world, 'rank')}" if proof.world > 1 else ""
    losses, inputs = proof.seen.get("loss", 0), proof.seen.get("input", 0)
    seen = f"losses ({losses:,})" if losses else "no losses: nothing called backward()"
    seen += f", inputs ({inputs:,})" if inputs else ""
    shared = ", blocks shared" if proof.shares_blocks else ""
    return (
        f"{count(proof.steps, 'step')}{ranks}{end}: {kinds}; generators, {seen}. {proof.lives} runs in "
        f"{ago(proof.seconds)}, in copies of {amount(proof.copy_bytes)}{shared}"
    )


def _series(resumed: Sequence[Resumed]) -> str:
    history = "; ".join(f"{_ENDED[each.ended_by]} {_at(each)}, resumed at {each.begin}" for each in resumed)
    last = resumed[-1]
    if last.failed:
        return f"{history}: did not come back"
    if last.differences:
        return f"{history}: differs at step {last.differences[0].step}"
    return f"{history}: the same to step {last.last}"


def _at(each: Resumed) -> str:
    places = {
        "boundary": "",
        "forward": ", in the next forward",
        "optimizer": ", before the next optimizer.step()",
        "after optimizer": ", behind the next optimizer.step()",
        "guard.save()": ", behind guard.save()",
    }
    return f"step {each.ended_at}{places.get(each.place, f', in the next {each.place}')}"


def _first(proof: Proof) -> str:
    first = proof.differences[0]
    rank = f", rank {first.rank}" if proof.world > 1 else ""
    when = "right after the restore" if first.restored else f"at step {first.step}"
    more = f"; {len(proof.differences) - 1} more differ there" if len(proof.differences) > 1 else ""
    values = f"{first.plain or 'not there'} undisturbed, {first.other or 'not there'} in {proof.where}"
    return f"{first.words}, {when}{rank}: {values}{more}"


def _untried(proof: Proof) -> str:
    """Return the events that an EXACT does not cover; none of a script that has come to its own end, which has no more of them."""
    names = [*([] if proof.own_end else proof.not_tried), *proof.passed_over]
    return f"; not tried: {', '.join(names)}" if names and proof.verdict is ProofVerdict.EXACT else ""


def _why_unsure(proof: Proof) -> str:
    if proof.verdict is not ProofVerdict.UNSURE:
        return ""
    return "; the runs share files" if proof.leaks else "; two undisturbed runs differ already"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _row(name: str, words: str, width: int | None, style: str) -> Iterator[Line]:
    first = f"  {name:<{_INDENT - 2}}"
    if width is None:
        yield f"{first}{words}".rstrip(), style
        return
    # Never break inside a word: people copy paths and flags.
    folded = textwrap.wrap(
        words, max(20, width - _INDENT), break_long_words=False, break_on_hyphens=False
    ) or [""]
    for number, line in enumerate(folded):
        yield f"{first if number == 0 else ' ' * _INDENT}{line}".rstrip(), style
