"""What an operator writes to have a run end: a line of plain words, or of JSON. Total: whatever it is, it is a notice.

`terminate 60 rack 7 loses its power` is a kind, seconds of warning, and words for the log; each may be missing. The
same as JSON: `{"kind": "terminate", "window": 60, "detail": "rack 7 loses its power"}`. `cancel` takes back what came
before it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from ...providers.notice import NoticeKind
from ...providers.text import TEXT, clip
from ..events import WEEK

#: Seconds that an operator leaves where none are said. When all is saved the run ends, so that more cost nothing.
WINDOW = 120.0
#: What an operator can announce: each is an end. (A drill is `spotguard drill`.)
_KINDS = (
    NoticeKind.OPERATOR,
    NoticeKind.TERMINATE,
    NoticeKind.STOP,
    NoticeKind.HIBERNATE,
    NoticeKind.PREEMPT,
    NoticeKind.REBOOT,
    NoticeKind.REDEPLOY,
    NoticeKind.MAINTENANCE,
)
_CANCEL = "cancel"
#: So many stand at the same time, the newest: a log that is taken for a notice file, or a writer gone wild, must not cost
#: the agent its memory. (A thousand lines were a thousand notices, compared each with each at every look: seen.)
KEPT = 32


@dataclass(frozen=True, slots=True)
class OperatorNotice:
    """One notice of an operator. Equal words are the same notice."""

    kind: NoticeKind = NoticeKind.OPERATOR
    window: float = WINDOW
    detail: str = ""


def fold(standing: tuple[OperatorNotice, ...], lines: list[str]) -> tuple[OperatorNotice, ...]:
    """What stands after these lines, given what stood before."""
    for line in lines:
        said = read(line)
        if said is None:
            standing = ()
        elif said not in standing:
            standing = (*standing, said)[-KEPT:]
    return standing


def read(line: str) -> OperatorNotice | None:
    """One line as a notice; None: it takes back those before it."""
    text = line.strip()
    if text.lower() == _CANCEL:
        return None
    if text.startswith("{"):
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):  # then they are words
            body = None
        if isinstance(body, dict):
            return _from_json(body)
    return _from_words(text)


def whole(text: str) -> list[str]:
    """The lines of a file: JSON that goes over several is one."""
    if text.lstrip().startswith("{"):
        try:
            json.loads(text)
            return [text]
        except (ValueError, RecursionError):
            pass
    return [line for line in text.splitlines() if line.strip()]


def _from_words(text: str) -> OperatorNotice:
    words = text.split()
    kind, window = NoticeKind.OPERATOR, WINDOW
    if words and words[0].lower() in _KINDS:
        kind = NoticeKind(words.pop(0).lower())
    # Only in this place: "rack 7 loses its power" does not end in 7 seconds.
    if words and (seconds := _seconds(words[0])) is not None:
        window = seconds
        del words[0]
    return OperatorNotice(kind, window, clip(" ".join(words), TEXT))


def _from_json(body: dict[str, Any]) -> OperatorNotice:
    kind, window, detail = body.get("kind"), body.get("window"), body.get("detail")
    known = isinstance(kind, str) and kind.lower() in _KINDS
    seconds = _seconds(str(window)) if isinstance(window, (int, float, str)) else None
    return OperatorNotice(
        NoticeKind(str(kind).lower()) if known else NoticeKind.OPERATOR,
        WINDOW if seconds is None else seconds,
        clip(detail, TEXT) if isinstance(detail, str) else "",
    )


def _seconds(word: str) -> float | None:
    try:
        value = float(word.removesuffix("s"))
    except ValueError:
        return None
    return min(max(value, 0.0), WEEK) if math.isfinite(value) else None
