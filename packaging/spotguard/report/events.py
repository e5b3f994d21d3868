"""The events of an attempt, from its records of notices, of errors, and of the end of its script. Pure."""

from __future__ import annotations

from typing import Any

from spotguard.hooks.ipc.failure_classes import CLASSES
from spotguard.hooks.ipc.failures.diagnosis import DiagnosedError
from spotguard.hooks.ipc.protocol import FAILURE, RESTART, STALL

from .facts import EventFact, FailureFact, mapping, number, text, texts, whole

#: Characters of an error's message, and its innermost frames, that a report shows.
_MESSAGE, _FRAMES = 4000, 100


def _of_notice(record: dict[str, Any], put: float) -> EventFact | None:
    notice = mapping(record, "notice")
    kind, source = text(notice, "kind"), text(notice, "source")
    if not notice:
        return None
    committed, history = bool(record.get("committed")), mapping(record, "history")
    step = whole(record, "step") if committed else whole(history, "completed")
    at = number(record, "ended") or put
    # Training goes on after a stall's save as after a drill's, and its record has that, too.
    if notice.get("drill") and kind != STALL:
        return EventFact(
            "drill", at, "", step, committed, history=history
        )  # beside training: no time is lost
    seconds = number(record, "seconds_to_commit") or number(record, "seconds") or 0.0
    detail = f": {told}" if (told := text(notice, "detail")) else ""
    words = {
        STALL: f"training stood still{detail}",
        RESTART: f"training stood still, and was ended so that it starts again{detail}",
        FAILURE: source,
    }.get(kind, f"{kind} notice from {source}")
    if not committed and (why := text(record, "reason")):
        words += f"; nothing new was saved: {why}"
    if left_out := texts(record, "left_out"):
        words += f"; left out: {', '.join(left_out)}"
    what = {STALL: "stall", RESTART: "error", FAILURE: "save"}.get(kind, "notice")
    return EventFact(what, at, words, step, committed, seconds, history, asked=kind == RESTART)


def _of_error(record: dict[str, Any], put: float) -> EventFact | None:
    if not record:
        return None
    step, newest = whole(record, "step"), whole(record, "newest_checkpoint")
    known = DiagnosedError(
        kind=text(record, "kind"),
        evidence=texts(record, "evidence"),
        error=text(record, "error"),
        message=text(record, "message").strip(),
        phase=text(record, "phase"),
        where=text(record, "where"),
        stack=texts(record, "stack")[-_FRAMES:],
        fingerprint="",
        stays=False,
    )
    error = ": ".join(filter(None, [known.error, known.first]))
    says = text(record, "says") or known.kind or "an error"
    at = f" at {known.where}" if known.where else ""
    # That of a stall begins with these words, and has the place.
    words = error if error.startswith(f"{says}: ") else f"{says}{at} ({error})" if error else f"{says}{at}"
    return EventFact(
        "error",
        number(record, "ended") or put,
        words,
        step,
        None if step is None else newest == step,
        history=mapping(record, "history"),
        follows=(row := CLASSES.get(known.kind)) is not None and row.follows,
        failure=FailureFact(
            kind=known.kind,
            evidence=known.evidence,
            confidence=text(record, "confidence"),
            advice=text(record, "advice"),
            error=known.error,
            message=known.message[:_MESSAGE],
            phase=known.phase,
            where=known.where,
            stack=known.stack,
            rank=whole(record, "rank"),
            step=step,
            newest_checkpoint=newest,
            by_agent=text(record, "by") == "agent",
        ),
    )


def _of_end(record: dict[str, Any], put: float) -> EventFact | None:
    if not record:
        return None
    kind, history = text(record, "why"), mapping(record, "history")
    known = kind if kind in ("ended", "interrupted", "left") else "ended"
    return EventFact(known, number(record, "ended") or put, "", whole(history, "completed"), history=history)


#: The reader of each kind of record: the record and the time of its put come in.
EVENTS = {"outcomes": _of_notice, "failures": _of_error, "ends": _of_end}
