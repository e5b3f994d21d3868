"""The text form of an agent's status answer: the guarded job, the state of each source, and advice for a blind source.

Pure functions turn a JSON body and a width into lines. The lines fit a terminal of 80 columns, carry the meaning of every
colour in words too, and end without spaces. So they can be piped, searched and pasted.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from spotguard.providers.text import ago, amount, count, span

#: Column at which a row's text begins, after its label.
_INDENT = 16
#: Characters of a script's name in a table.
_NAME = 16
#: Text for a command in which no training process has registered.
#: Seconds without progress that are shown: far less than any limit for a stall, and more than a slow step.
_STANDS = 10.0
_UNREGISTERED = "no training process has registered yet: a notice now would end the command unsaved"
#: Text for a missing training process, by the phase of the agent.
_NOBODY = {
    "ending": "no training process is there any more",
    "waiting": "none: a notice stands, and this run exits at its deadline, or at once on SIGTERM",
    "rejoining": "none: the job's other machines were not there, and it is started again in a moment",
    "outliving": "none: it starts again when this machine has outlived its notice",
}

Line = tuple[str, str]  # text and style


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
        yield from _table(body["sessions"])
    for label, words, style in _below(body):
        yield from _row(label, words, style, width)


def title(body: dict[str, Any]) -> str:
    since = f"for {ago(body['for_seconds'])}"
    if body["service"]:
        return f"service (pid {body['pid']}), {since}, {body['phase']}"
    command = body["command"]
    resting = "no command" if body["phase"] in ("outliving", "waiting", "rejoining") else "starting"
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
    if _is_one_job(body["sessions"]):
        parts.append(_job(body["sessions"]))
    else:
        for each in _ranked(body["sessions"]):
            who = f"rank {each['rank']} " if len(body["sessions"]) > 1 else ""
            parts.append(f"{who}step {_step(each)}, checkpoint {_checkpoint(each)}" + _saving(each, ", "))
    parts += dict.fromkeys(f"SUSPECT: {why}" for each in body["sessions"] if (why := each.get("suspect")))
    parts += dict.fromkeys(f"HIGH: {why}" for each in body["sessions"] if (why := each.get("high_loss")))
    parts += dict.fromkeys(problem for each in body["sessions"] for problem, _ in _wrong(each))
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
                one.get("misuse"),
                one.get("suspect"),
                one.get("high_loss"),
                one["saving"] and one["saving"]["phase"],
            )
            for one in body.get("sessions", ())
        ],
        body.get("last_outcome") and body["last_outcome"]["line"],
        [(one["alert"], one["summary"]) for one in (body.get("alerts") or {}).get("firing", ())],
        body.get("verification") and body["verification"]["status"],
    )


# --- the text ---


def _rows(body: dict[str, Any], now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield the label, the text and the style of each line above the table."""
    if body["notice"] is not None:
        label, style = ("drill", "bold yellow") if body["notice"]["drill"] else ("NOTICE", "bold red")
        reserve = body["notice"]["reserve"]
        kept = f", the last {reserve:.1f} s in reserve" if reserve else ""
        yield label, f"{body['notice']['kind']} from {_left(body['notice'])}{kept}", style
    yield from _sources(body["sources"])
    for event in body.get("upcoming", ()):  # absent in an older agent's answer
        yield event["severity"], _upcoming(event, now), "yellow"
    if not body["sessions"]:
        yield "training", _NOBODY.get(body["phase"], _UNREGISTERED), "yellow"
    elif len(body["sessions"]) == 1:
        yield from _session(body["sessions"][0])
    elif _is_one_job(body["sessions"]):
        yield "ranks", _job(body["sessions"]), ""


def _error(body: dict[str, Any]) -> str:
    error, socket = str(body["error"]), str(body["socket"])
    return error if socket in error else f"{socket}: {error}"


def _sources(sources: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
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


def _session(session: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the only training process."""
    yield "training", f"{session['name']} (pid {session['pid']}), step {_step(session)}", ""
    if (steps := session.get("unmarked_steps")) and not session["marked"]:
        yield "boundary", f"never: no guard.step() in {count(steps, 'optimizer step')}", "yellow"
    if still := _still(session):
        yield "progress", still, "yellow"
    if suspect := _suspect(session):
        yield "SUSPECT", suspect, "bold red"
    if high := session.get("high_loss"):
        yield "HIGH", high, "yellow"
    for problem, advice in _wrong(session):
        yield "WRONG", problem, "bold red"
        yield "what to do", advice, "bold"
    yield "checkpoint", _checkpoint(session), ""
    size = f"{amount(session['bytes'])} " if session["bytes"] else ""
    yield "saves", f"{size}{_mode(session)}{_takes(session)}", ""
    if session["saving"] is not None:
        yield "saving", _saving(session), "bold"


def _still(session: dict[str, Any]) -> str:
    """Return for how long a training stands still, and where; "" if it moves, or waits for a save."""
    if (session.get("unheard") or 0.0) >= _STANDS and session["phase"] is not None:
        last = f"last seen in {session['phase']} at {session['where']}"
        return f"unknown: it has sent nothing for {ago(session['unheard'])}, {last}"
    if (session.get("still") or 0.0) < _STANDS or session["phase"] in (None, "save"):
        return ""
    return f"none for {ago(session['still'])}, in {session['phase']} at {session['where']}"


def _suspect(session: dict[str, Any]) -> str:
    """Return why the session's losses make its checkpoints suspect, and the effect; "" if they do not."""
    # An older agent does not report it.
    return f"{why}; its checkpoints do not count for --keep" if (why := session.get("suspect")) else ""


def _wrong(session: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the misuse by the session's script, and the advice. An older agent does not report it."""
    if misuse := session.get("misuse"):
        problem, _, advice = misuse.partition("; ")
        yield problem, advice


def _below(body: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if len(body["sessions"]) > 1:
        why: dict[str, list[str]] = {}
        for each in _ranked(body["sessions"]):
            if each["detail"]:
                why.setdefault(_mode(each), []).append(f"pid {each['pid']}")
        for mode, who in why.items():
            yield "saves", f"{mode} ({', '.join(who)})", ""
        wrong: dict[tuple[str, str], list[str]] = {}
        for each in _ranked(body["sessions"]):
            if still := _still(each):
                yield "progress", f"rank {each['rank']}: {still}", "yellow"
            if suspect := _suspect(each):
                yield "SUSPECT", f"rank {each['rank']}: {suspect}", "bold red"
            if high := each.get("high_loss"):
                yield "HIGH", f"rank {each['rank']}: {high}", "yellow"
            for problem in _wrong(each):
                wrong.setdefault(problem, []).append(f"pid {each['pid']}")
        for (finding, advice), who in wrong.items():
            yield "WRONG", f"{finding} ({', '.join(who)})", "bold red"
            yield "what to do", advice, "bold"
    if body.get("alerts"):  # an older agent sends none
        yield from _alerts(body["alerts"])
    if body["last_outcome"] is not None:
        yield "last", body["last_outcome"]["line"], ""
    if failure := body.get("last_failure"):  # an older agent sends none
        yield "failure", failure["text"], "yellow"
    for silent in body.get("silent_machines", ()):
        yield (
            "SILENT",
            f"machine {silent['machine']} of run {silent['run_id']} sends no heartbeats",
            "bold red",
        )
    if verified := body.get("verification"):
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


def _alerts(alerts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the state of the helper of alerts, and each alert that fires."""
    if not alerts["pid"]:
        code = alerts["returncode"]
        how = (
            "could not be started"
            if code is None
            else f"has ended ({code}), started {count(alerts['starts'], 'time')}"
        )
        yield "alerts", f"NONE: their helper {how}; training does not depend on it", "bold red"
        return
    missed = f"; {alerts['dropped']:,} messages to it were dropped" if alerts["dropped"] else ""
    if not alerts["firing"]:
        yield "alerts", f"none fires{missed}", "yellow" if missed else ""
    for number, alert in enumerate(alerts["firing"]):
        style = "bold red" if alert["severity"] == "critical" else "yellow"
        text = f"{alert['severity']}, for {ago(alert['for_seconds'])}: {alert['summary']}"
        yield "" if number else "alerts", f"{text}{missed if not number else ''}", style


def _is_one_job(sessions: Sequence[dict[str, Any]]) -> bool:
    """Return whether the sessions are ranks of one job, which save together, and nothing else."""
    alike = {(each["run_id"], each["name"], each["world"]) for each in sessions}
    return len(sessions) > 1 and len(alike) == 1 and sessions[0]["world"] > 1


def _job(sessions: Sequence[dict[str, Any]]) -> str:
    """Return one line about the ranks on this machine."""
    here, world = len(sessions), sessions[0]["world"]
    words = f"{sessions[0]['name']}, {here} of {world} here" if here < world else sessions[0]["name"]
    steps = sorted({each["step"] for each in sessions if each["step"] >= 0})
    words += f", step {steps[0]}" if steps else ", no step yet"
    words += f" to {steps[-1]}" if len(steps) > 1 else ""
    newest = max(sessions, key=lambda each: int(each["checkpoint_step"]))
    words += f", checkpoint {_checkpoint(newest)}"
    phases = Counter(each["saving"]["phase"] for each in sessions if each["saving"])
    return words + "".join(f", {number} {phase}" for phase, number in sorted(phases.items()))


def _table(sessions: Sequence[dict[str, Any]]) -> Iterator[Line]:
    """Yield a table with one line for each training process."""
    ranked = _ranked(sessions)
    one_job = _is_one_job(sessions)
    several = len({each["run_id"] for each in ranked}) > 1
    rows = [("run", "rank", "pid", "name", "step", "checkpoint", "state", "saves", "now")]
    rows += [
        (
            each["run_id"],
            f"{each['rank']}/{each['world']}",
            str(each["pid"]),
            _clipped(each["name"]),
            _step(each),
            _checkpoint(each),
            amount(each["bytes"]) if each["bytes"] else "-",
            each["mode"],
            _short(each) if one_job else _saving(each) or "training",
        )
        for each in ranked
    ]
    columns = list(zip(*rows, strict=True))[0 if several else 1 :]
    if one_job:  # the row above has the name
        del columns[2]
    widths = [max(map(len, column)) for column in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        text = "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True))
        yield f"  {text.rstrip()}", "" if number else "dim"


def _ranked(sessions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(sessions, key=lambda each: (each["run_id"], each["rank"], each["pid"]))


def _clipped(name: str) -> str:
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"


def _step(session: dict[str, Any]) -> str:
    return str(session["step"]) if session["step"] >= 0 else "-"


def _checkpoint(session: dict[str, Any]) -> str:
    if session["checkpoint_age"] is None:
        return "none yet"
    level = session.get("checkpoint_level", "full")  # absent in an older agent's answer
    less = "" if level == "full" else f" ({level})"
    return f"step {session['checkpoint_step']}{less}, {ago(session['checkpoint_age'])} ago"


def _mode(session: dict[str, Any]) -> str:
    """Return when a save begins, in words."""
    because = f": {session['detail']}" if session["detail"] else ""
    match session["mode"]:
        case "window":
            return f"at the notice, in the middle of a step too{because}"
        case "boundary":
            return f"at the next guard.step(){because}"
        case "callback":
            return f"by a function of its own{because}"
    return f"{session['mode']}{because}"  # a mode of a newer hook


def _takes(session: dict[str, Any]) -> str:
    """Return the expected duration of a save and the measured rate of the last saves.

    "" if there is no measurement yet, or if an older agent does not report it.
    """
    seconds, rate = session.get("save_seconds"), session.get("rate")
    if seconds is None or not rate:
        return ""
    return f"; about {seconds:.1f} s, as the last ones were ({amount(rate)}/s)"


def _short(session: dict[str, Any]) -> str:
    """Return the progress of the session's save in a few words. The line above the table has the rest."""
    saving = session["saving"]
    if saving is None or not saving.get("total") or saving["phase"] not in ("first-byte", "writing"):
        return _saving(session) or "training"
    rest = saving.get("seconds_to_go")
    words = f"{100 * saving['bytes'] // saving['total']} %"
    return f"{saving['phase']} {words}" if rest is None else f"{words}, {rest:.1f} s to go"


def _saving(session: dict[str, Any], begin: str = "") -> str:
    """Return the state of the save that a notice began; "" if there is none."""
    saving = session["saving"]
    if saving is None:
        return ""
    words = f"{begin}{saving['phase']}" + (f" {amount(saving['bytes'])}" if saving["bytes"] else "")
    if saving["phase"] in ("first-byte", "writing"):  # an older agent reports only the bytes
        words += f" of {amount(saving['total'])}" if saving.get("total") else ""
        words += f" at {amount(saving['rate'])}/s" if saving.get("rate") is not None else ""
        if (rest := saving.get("seconds_to_go")) is not None:
            words += f", {rest:.1f} s to go and {saving['seconds_left']:.1f} s for it"
    return words + (f": {saving['why']}" if saving["why"] else "")


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
