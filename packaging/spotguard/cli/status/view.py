"""The text form of an agent's status answer: the guarded job, the state of each source, and advice for a blind source.

Pure functions turn a JSON body and a width into lines. The lines fit a terminal of 80 columns, carry the meaning of every
colour in words too, and end without spaces. So they can be piped, searched and pasted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from spotguard.providers.text import ago, count, span

from . import sessions
from .sessions import Line, Row

#: Column at which a row's text begins, after its label.
_INDENT = 16
#: Text for a command in which no training process has registered.
_UNREGISTERED = "no training process has registered yet"
_UNSAVED = "a notice now would end the command unsaved"
#: Text for a missing training process, by the phase of the agent.
_NOBODY = {
    "ending": "no training process is there any more",
    "waiting": "none: a notice stands, and this run exits at its deadline, or at once on SIGTERM",
    "restarting": "none: it has failed, and is started again within a minute",
    "outliving": "none: it starts again when this machine has outlived its notice",
}


def lines(body: dict[str, Any], now: datetime, width: int | None = None) -> Iterator[Line]:
    """Yield the lines of the whole answer.

    Args:
        body: the agent's answer, or the error of asking it.
        now: the wall clock time, for the times of upcoming notices.
        width: columns to which long lines are folded; None: no folding.
    """
    if "error" in body:
        yield from _row("no answer", _error(body), "bold red", width, begin="")
        return
    yield title(body), "bold"
    for label, words, style in _rows(body, now):
        yield from _row(label, words, style, width)
    if len(body["sessions"]) > 1:
        yield from sessions.table(body["sessions"])
    for label, words, style in _below(body):
        yield from _row(label, words, style, width)


def title(body: dict[str, Any]) -> str:
    since = f"for {ago(body['for_seconds'])}"
    if body["service"]:
        return f"service (pid {body['pid']}), {since}, {body['phase']}"
    command = body["command"]
    resting = "no command" if body["phase"] in ("outliving", "waiting", "restarting") else "starting"
    doing = resting if command is None else f"command pid {command['pid']}"
    again = f", restarted {count(command['restarts'], 'time')}" if command and command["restarts"] else ""
    return f"run {body['run_id']} (pid {body['pid']}), {doing}, {since}{again}, {body['phase']}"


def pulse(body: dict[str, Any]) -> str:
    """Return the answer in one line, for output that is read line by line."""
    if "error" in body:
        return f"no answer: {_error(body)}"
    parts = ["service" if body["service"] else f"run {body['run_id']}"]
    if body["notice"] is not None:
        parts.append(_notice(body["notice"]))
    if sessions.is_one_job(body["sessions"]):
        parts.append(sessions.job_line(body["sessions"]))
    else:
        for each in sessions.by_rank(body["sessions"]):
            who = f"rank {each['rank']} " if len(body["sessions"]) > 1 else ""
            parts.append(
                f"{who}step {sessions.step_of(each)}, checkpoint {sessions.checkpoint_of(each)}"
                + sessions.saving_of(each, ", ")
            )
    parts += dict.fromkeys(
        f"no progress of rank {each['rank']}: {still}"
        for each in sessions.by_rank(body["sessions"])
        if (still := sessions.still_of(each))
    )
    parts += dict.fromkeys(f"SUSPECT: {why}" for each in body["sessions"] if (why := each["suspect"]))
    parts += dict.fromkeys(f"HIGH: {why}" for each in body["sessions"] if (why := each["high_loss"]))
    parts += dict.fromkeys(problem for each in body["sessions"] for problem, _ in sessions.misuse_of(each))
    parts += [f"{source['name']}: {_sight(source)}" for source in body["sources"] if not _fine(source)]
    if not body["sessions"]:
        parts.append("no training process")
    if body["sources"] and all(map(_fine, body["sources"])):
        parts.append("seeing")
    return "; ".join(parts)


def shape(body: dict[str, Any]) -> Any:
    """Return the parts of the answer whose change is news in line-by-line output. Running numbers are left out."""
    return (
        body.get("error"),
        body.get("run_id"),
        body.get("phase"),
        [(one["name"], one["sight"], one["reason"], one["advice"]) for one in body.get("sources", ())],
        body.get("notice") and body["notice"]["id"],
        [(one["id"], one["then"]) for one in body.get("upcoming", ())],
        [
            (
                one["pid"],
                one["mode"],
                one["misuse"],
                one["suspect"],
                one["high_loss"],
                bool(sessions.still_of(one)),
                one["saving"] and one["saving"]["phase"],
            )
            for one in body.get("sessions", ())
        ],
        body.get("last_outcome") and body["last_outcome"]["line"],
        [(one["alert"], one["summary"]) for one in (body.get("alerts") or {}).get("firing", ())],
        body.get("verification") and body["verification"]["status"],
    )


# --- the text ---


def _rows(body: dict[str, Any], now: datetime) -> Iterator[Row]:
    """Yield the label, the text and the style of each line above the table."""
    if body["notice"] is not None:
        label, style = ("drill", "bold yellow") if body["notice"]["drill"] else ("NOTICE", "bold red")
        reserve = body["notice"]["reserve"]
        kept = f", the last {reserve:.1f} s in reserve" if reserve else ""
        yield label, f"{body['notice']['kind']} from {_left(body['notice'])}{kept}", style
    yield from _sources(body["sources"])
    for event in body["upcoming"]:
        yield event["severity"], _upcoming(event, now), "yellow"
    if not body["sessions"]:
        why = body["unattached"]
        nobody = (
            f"--attach has attached nothing: {why}; {_UNSAVED}" if why else f"{_UNREGISTERED}: {_UNSAVED}"
        )
        yield "training", _NOBODY.get(body["phase"], nobody), "yellow"
    elif len(body["sessions"]) == 1:
        yield from sessions.rows_of_one(body["sessions"][0])
    elif sessions.is_one_job(body["sessions"]):
        yield "ranks", sessions.job_line(body["sessions"]), ""


def _error(body: dict[str, Any]) -> str:
    error, socket = str(body["error"]), str(body["socket"])
    return error if socket in error else f"{socket}: {error}"


def _sources(sources: Sequence[dict[str, Any]]) -> Iterator[Row]:
    if not sources:
        yield "notices", "none is watched; SIGTERM and drills still work", "yellow"
    wide = max((len(source["name"]) for source in sources), default=0)
    for number, source in enumerate(sources):
        style = "green" if _fine(source) else "yellow" if source["sight"] == "seeing" else "bold red"
        yield "" if number else "notices", f"{source['name']:<{wide}}  {_sight(source)}", style
    times: dict[tuple[str, str], int] = {}
    for source in sources:  # a cloud's sources go blind together, so the advice is printed once
        if source["sight"] == "seeing":
            continue
        problem = (source["reason"], source["advice"])
        times[problem] = times.get(problem, 0) + 1
        if times[problem] == 1:
            yield source["reason"], source["detail"], ""
            if source["advice"]:
                yield "what to do", source["advice"], "bold"


def _fine(source: dict[str, Any]) -> bool:
    return bool(source["sight"] == "seeing" and not source["detail"])


def _sight(source: dict[str, Any]) -> str:
    since = f"for {ago(source['for_seconds'])}"
    if source["sight"] == "seeing":
        return f"seeing {since}" + (f"; {source['detail']}" if source["detail"] else "")
    return f"{source['sight'].upper()} {since} ({source['reason']})"


def _notice(notice: dict[str, Any]) -> str:
    what = "drill" if notice["drill"] else f"{notice['kind'].upper()} NOTICE"
    return f"{what} from {_left(notice)}"


def _left(notice: dict[str, Any]) -> str:
    if notice["seconds_left"] is None:
        return f"{notice['source']} ({notice['detail']}): on another machine of this job, this one stays"
    return f"{notice['source']}: {notice['seconds_left']:.1f} s left"


def _upcoming(event: dict[str, Any], now: datetime) -> str:
    """Return an upcoming event, the reaction to it, and the times of both. Training goes on until then."""
    origin = f"; from {event['source']}" + (f" ({event['detail']})" if event["detail"] else "")
    if event["seconds_left"] is None:
        return f"{event['kind']}, a warning for {ago(event['for_seconds'])}: {event['then']}{origin}"
    at = (now + timedelta(seconds=event["seconds_left"])).astimezone()
    when = f"in {span(event['seconds_left'])}, at {at:%Y-%m-%d %H:%M:%S}"
    return (
        f"{event['kind']} {when}: training continues; a {event['then']} in {span(event['then_in'])}{origin}"
    )


def _below(body: dict[str, Any]) -> Iterator[Row]:
    if len(body["sessions"]) > 1:
        yield from sessions.rows_of_several(body["sessions"])
    if body["alerts"] is not None:
        yield from _alerts(body["alerts"])
    if body["last_outcome"] is not None:
        yield "last", body["last_outcome"]["line"], ""
    if (failure := body["last_failure"]) is not None:
        yield "failure", failure["text"], "yellow"
    for silent in body["silent_machines"]:
        yield (
            "SILENT",
            f"machine {silent['machine']} of run {silent['run_id']} sends no heartbeats",
            "bold red",
        )
    if (verified := body["verification"]) is not None:
        yield _verified(verified)


def _verified(verified: dict[str, Any]) -> tuple[str, str, str]:
    """Return the row about the scheduled verification of checkpoints."""
    now = "" if verified["running"] is None else f"; reading step {verified['running']} now"
    if verified["status"] is None:
        return "verified", f"none yet, one is due every {ago(verified['every'])}{now}", ""
    when = f"step {verified['step']}, {ago(verified['age'])} ago"
    if verified["status"] == "sound":
        return "verified", f"{when}: every checksum agrees{now}", ""
    if verified["status"] == "damaged":
        return (
            "verified",
            f"{when}: checkpoint {verified['checkpoint']} is DAMAGED: {verified['detail']}{now}",
            "bold red",
        )
    return "verified", f"{when}: not known: {verified['detail']}{now}", "yellow"


def _alerts(alerts: dict[str, Any]) -> Iterator[Row]:
    """Yield the state of the helper of alerts, and each incident that lasts."""
    if not alerts["pid"]:
        code = alerts["returncode"]
        how = (
            "could not be started"
            if code is None
            else f"has ended ({code}), started {count(alerts['starts'], 'time')}"
        )
        yield (
            "incidents",
            f"NONE is posted: the helper of alerts {how}; training does not depend on it",
            "bold red",
        )
        return
    missed = f"; {alerts['dropped']:,} messages to it were dropped" if alerts["dropped"] else ""
    if not alerts["firing"]:
        yield "incidents", f"none{missed}", "yellow" if missed else ""
    for number, alert in enumerate(alerts["firing"]):
        style = "bold red" if alert["severity"] == "critical" else "yellow"
        text = f"{alert['severity']}, for {ago(alert['for_seconds'])}: {alert['summary']}"
        yield "" if number else "incidents", f"{text}{missed if not number else ''}", style


# --- the layout ---


def _row(label: str, words: str, style: str, width: int | None, begin: str = "  ") -> Iterator[Line]:
    first = f"{begin}{label:<{_INDENT - len(begin) - 1}} "
    if width is None:
        yield f"{first}{words}".rstrip(), style
        return
    # Words are never broken, so that an address or a flag can be copied.
    folded = textwrap.wrap(
        words,
        max(20, width - _INDENT),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
    for number, line in enumerate(folded):
        yield f"{first if number == 0 else ' ' * _INDENT}{line}".rstrip(), style
