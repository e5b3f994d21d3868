"""The status of an agent as plain JSON: the answer to `spotguard status`. A user sees their own sessions; root sees all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...hooks.ipc.protocol import MAX_FRAME
from ...providers.text import TEXT, clip
from ..core.budget import SIGTERM_WINDOW
from ..core.machine import Machine
from ..sources.feed import Feed

#: Bytes of one answer's JSON. A frame also holds the rest of the message.
_PAGE = MAX_FRAME - 1024
#: Bytes of an answer that an outcome's sessions may take. The record in the file has all sessions.
_OF_OUTCOME = _PAGE // 2
#: Bytes of an answer that the firing alerts may take.
_OF_ALERTS = _PAGE // 8


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """The facts that do not change while the agent runs."""

    run_id: str
    pid: int
    socket: str
    service: bool
    #: Monotonic seconds.
    started: float
    #: How many sources of the cloud the agent polls.
    sources: int = 0
    #: Seconds of warning to count on.
    window: float = SIGTERM_WINDOW
    #: Whether `--window` set them. Then the cloud's own number does not count.
    window_given: bool = False
    #: `--reserve` in seconds; None: in proportion to the window.
    reserve: float | None = None


def answers(
    machine: Machine,
    feed: Feed,
    facts: AgentFacts,
    uid: int,
    now: float,
    last: dict[str, Any] | None,
    alerts: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the answer in pages. The first page has everything; sessions that do not fit follow on the other pages."""
    visible = [s for s in machine.sessions.values() if uid in (0, s.uid)]
    sessions = [
        s.status(now) | {"stall_limit": machine.stalls.limit(s.run)} | _saving(machine, s.number, now)
        for s in visible
    ]
    body: dict[str, Any] = {
        "run_id": facts.run_id,
        "pid": facts.pid,
        "socket": facts.socket,
        "service": facts.service,
        "for_seconds": round(now - facts.started, 1),
        "phase": machine.phase,
        "command": _command(machine),
        "unattached": machine.unattached or None,
        "sources": feed.status(now),
        "notice": _notice(machine, now),
        "window": facts.window if facts.window_given else feed.window or facts.window,
        "reserve": facts.reserve,
        "upcoming": machine.upcoming.status(now),
        "last_outcome": None,
        "last_failure": _failure(machine),
        "alerts": None,
        "silent_machines": [{"run_id": run_id, "machine": name} for run_id, name in machine.stalls.silent],
        "verification": machine.verification.status(now),
        "sessions": [],
    }
    if last is not None and (uid == 0 or not facts.service):
        body["last_outcome"] = shortened(last)
    if alerts is not None and (uid == 0 or not facts.service):
        body["alerts"] = {**alerts, "firing": alerts["firing"][: _fitting(alerts["firing"], _OF_ALERTS)]}
    pages = [body]
    count = _fitting(sessions, _PAGE - _size(body))
    body["sessions"], rest = sessions[:count], sessions[count:]
    while rest:
        count = max(1, _fitting(rest, _PAGE))  # a session's own texts are clipped far below a page
        pages.append({"sessions": rest[:count]})
        rest = rest[count:]
    return pages


def shortened(record: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome's record with as many of its sessions as fit into an answer, the first ones."""
    sessions = record["sessions"]
    return {**record, "sessions": sessions[: _fitting(sessions, _OF_OUTCOME)]}


def _fitting(values: Sequence[object], room: int) -> int:
    """Return how many of the first values take no more than `room` bytes as JSON."""
    for count, value in enumerate(values):
        room -= _size(value) + 1  # the comma
        if room < 0:
            return count
    return len(values)


def _size(value: object) -> int:
    """Return the size as JSON in bytes. `json.dumps` writes only ASCII: another character takes six or twelve bytes."""
    return len(json.dumps(value, separators=(",", ":")))


def in_a_line(machine: Machine, feed: Feed) -> str:
    """Return the status as one line for the service manager, which gets each new line.

    The line has no numbers that change by themselves.
    """
    guarded, p = len(machine.sessions), machine.preemption
    who = f"{guarded} training process{'' if guarded == 1 else 'es'}"
    if p is not None:
        done = sum(part.committed is not None for part in p.parts.values())
        return f"{machine.phase}, {p.notice.source}: {done} of {len(p.parts)} saved"
    blind = [f"{event.source}: {event.health.detail}" for event in feed.unseeing()]
    sight = f"; BLIND: {'; '.join(blind)}" if blind else ""
    return f"{machine.phase}, {who}{sight}"


def _command(machine: Machine) -> dict[str, Any] | None:
    command = machine.command
    if command is None:
        return None
    return {"pid": command.pid, "returncode": command.returncode, "restarts": machine.restarts}


def _failure(machine: Machine) -> dict[str, Any] | None:
    cause = machine.failure
    return None if cause is None else {"class": cause.kind, "text": cause.text, "repeats": cause.repeats}


def _notice(machine: Machine, now: float) -> dict[str, Any] | None:
    p = machine.preemption
    if p is None:
        return None
    return {
        "id": p.id,
        "kind": str(p.notice.kind),
        "source": p.notice.source,
        "detail": p.notice.detail,
        "drill": p.drill,
        "seconds_left": None if p.stays else round(p.deadline - now, 3),  # this machine stays
        "reserve": p.reserve,
        "ending": p.account,
    }


def _saving(machine: Machine, number: int, now: float) -> dict[str, Any]:
    p = machine.preemption
    part = p.parts.get(number) if p is not None else None
    if p is None or part is None:
        return {"saving": None}
    phase = "committed" if part.committed else ("failed" if part.failed else part.phase or "delivered")
    why = clip(part.committed.detail, TEXT) if part.committed else part.failed
    uploading = phase in ("first-byte", "writing")
    rate, rest = (part.pace.rate(now), part.pace.seconds_left(now)) if uploading else (None, None)
    return {
        "saving": {
            "phase": phase,
            "step": part.step,
            "bytes": part.pace.done,
            "total": part.pace.total,
            "rate": None if rate is None else round(rate, 1),
            "seconds_to_go": None if rest is None else round(rest, 1),
            "seconds_left": round(max(0.0, p.limit - now), 1),
            "why": why,
        }
    }
