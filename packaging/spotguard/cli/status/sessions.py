"""The text of registered training processes in a status answer: their rows, their table, and the words of each.

Each is a JSON object, as `agent.core.session` makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from spotguard.hooks.restore.proof_file import is_exact
from spotguard.providers.text import ago, amount, count

#: Characters of a script's name in a table.
_NAME = 16
#: Seconds without progress that are shown: far less than any limit for a stall, and more than a slow step.
_STANDS = 10.0

Line = tuple[str, str]  # text and style
Row = tuple[str, str, str]  # label, text and style


def is_one_job(sessions: Sequence[dict[str, Any]]) -> bool:
    """Return whether the sessions are ranks of one job, which save together, and nothing else."""
    alike = {(each["run_id"], each["name"], each["world"]) for each in sessions}
    return len(sessions) > 1 and len(alike) == 1 and sessions[0]["world"] > 1


def job_line(sessions: Sequence[dict[str, Any]]) -> str:
    """Return one line about the ranks on this machine."""
    here, world = len(sessions), sessions[0]["world"]
    words = f"{sessions[0]['name']}, {here} of {world} here" if here < world else sessions[0]["name"]
    steps = sorted({each["step"] for each in sessions if each["step"] >= 0})
    words += f", step {steps[0]}" if steps else ", no step yet"
    words += f" to {steps[-1]}" if len(steps) > 1 else ""
    newest = max(sessions, key=lambda each: int(each["checkpoint_step"]))
    words += f", checkpoint {checkpoint_of(newest)}"
    phases = Counter(each["saving"]["phase"] for each in sessions if each["saving"])
    return words + "".join(f", {number} {phase}" for phase, number in sorted(phases.items()))


def rows_of_one(session: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of the only training process."""
    yield (
        "training",
        f"{session['name']} (pid {session['pid']}), step {step_of(session)}{_doing(session, ', in ')}",
        "",
    )
    if (steps := session["unmarked_steps"]) and not session["marked"]:
        yield "boundary", f"never: no guard.step() in {count(steps, 'optimizer step')}", "yellow"
    if still := still_of(session):
        yield "progress", still, "yellow"
    if suspect := _suspect(session):
        yield "SUSPECT", suspect, "bold red"
    if high := session["high_loss"]:
        yield "HIGH", high, "yellow"
    for problem, advice in misuse_of(session):
        yield "WRONG", problem, "bold red"
        yield "what to do", advice, "bold"
    if attached := session["attached"]:
        yield "attached", f"to {attached}", ""
    if proof := session["proof"]:
        yield proof_row(proof)
    yield "checkpoint", checkpoint_of(session), ""
    if failing := session["failing"]:
        yield "FAILED", f"the last background checkpoint: {failing}", "bold red"
    if left_out := session["checkpoint_left_out"]:
        yield "left out", left_out, "yellow"
    size = f"{amount(session['bytes'])} " if session["bytes"] else ""
    yield "saves", f"{size}{_mode(session)}{_takes(session)}", ""
    if session["saving"] is not None:
        yield "saving", saving_of(session), "bold"


def proof_row(proof: str) -> Row:
    """Return the row of the verdict about the script's code."""
    return "proof", proof, "" if is_exact(proof) else "yellow"


def _doing(session: dict[str, Any], begin: str = "") -> str:
    """Return the phase of training; "" if it has not begun."""
    return f"{begin}{phase}" if (phase := session["phase"]) else ""


def still_of(session: dict[str, Any]) -> str:
    """Return for how long a training stands still, and where; "" if it moves, or waits for a save."""
    if (session["unheard"] or 0.0) >= _STANDS and session["phase"] is not None:
        last = f"last seen in {session['phase']} at {session['where']}"
        return f"unknown: it has sent nothing for {ago(session['unheard'])}, {last}"
    if (session["still"] or 0.0) < _STANDS or session["phase"] in (None, "save"):
        return ""
    limit = session["stall_limit"]
    stall = f"; a stall from {ago(limit)} on" if limit is not None else "; no stall is looked for"
    return f"none for {ago(session['still'])}, in {session['phase']} at {session['where']}{stall}"


def _suspect(session: dict[str, Any]) -> str:
    """Return why the session's losses make its checkpoints suspect, and the effect; "" if they do not."""
    return f"{why}; its checkpoints do not count for --keep" if (why := session["suspect"]) else ""


def misuse_of(session: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the misuse by the session's script, and the advice."""
    if misuse := session["misuse"]:
        problem, _, advice = misuse.partition("; ")
        yield problem, advice


def rows_of_several(found: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield the rows below the table of several training processes."""
    why: dict[str, list[str]] = {}
    for each in by_rank(found):
        if each["detail"]:
            why.setdefault(_mode(each), []).append(f"pid {each['pid']}")
    for mode, who in why.items():
        yield "saves", f"{mode} ({', '.join(who)})", ""
    for left_out in dict.fromkeys(
        each["checkpoint_left_out"] for each in found if each["checkpoint_left_out"]
    ):
        yield "left out", left_out, "yellow"  # each rank's are named on all ranks
    for proof in dict.fromkeys(each["proof"] for each in found if each["proof"]):
        yield proof_row(proof)
    wrong: dict[tuple[str, str], list[str]] = {}
    for each in by_rank(found):
        if still := still_of(each):
            yield "progress", f"rank {each['rank']}: {still}", "yellow"
        if failing := each["failing"]:
            yield "FAILED", f"the last background checkpoint of rank {each['rank']}: {failing}", "bold red"
        if suspect := _suspect(each):
            yield "SUSPECT", f"rank {each['rank']}: {suspect}", "bold red"
        if high := each["high_loss"]:
            yield "HIGH", f"rank {each['rank']}: {high}", "yellow"
        for problem in misuse_of(each):
            wrong.setdefault(problem, []).append(f"pid {each['pid']}")
    for (finding, advice), who in wrong.items():
        yield "WRONG", f"{finding} ({', '.join(who)})", "bold red"
        yield "what to do", advice, "bold"


def table(sessions: Sequence[dict[str, Any]]) -> Iterator[Line]:
    """Yield a table with one line for each training process."""
    ranked = by_rank(sessions)
    one_job = is_one_job(sessions)
    several = len({each["run_id"] for each in ranked}) > 1
    rows = [("run", "rank", "pid", "name", "step", "checkpoint", "state", "saves", "now")]
    rows += [
        (
            each["run_id"],
            f"{each['rank']}/{each['world']}",
            str(each["pid"]),
            _clipped(each["name"]),
            step_of(each),
            checkpoint_of(each),
            amount(each["bytes"]) if each["bytes"] else "-",
            each["mode"],
            _short(each) if one_job else saving_of(each) or _doing(each) or "training",
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


def by_rank(sessions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(sessions, key=lambda each: (each["run_id"], each["rank"], each["pid"]))


def _clipped(name: str) -> str:
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"


def step_of(session: dict[str, Any]) -> str:
    return str(session["step"]) if session["step"] >= 0 else "-"


def checkpoint_of(session: dict[str, Any]) -> str:
    if session["checkpoint_age"] is None:
        damaged = session["damaged_checkpoint"]
        return f"none: {damaged} is damaged" if damaged else "none yet"
    level = session["checkpoint_level"]
    less = "" if level == "full" else f" ({level})"
    return f"step {session['checkpoint_step']}{less}, {ago(session['checkpoint_age'])} ago"


def _mode(session: dict[str, Any]) -> str:
    """Return when a save begins, in words."""
    because = f": {session['detail']}" if session["detail"] else ""
    match session["mode"]:
        case "window":
            return f"at any moment of a step{because}"
        case "boundary":
            return f"at the next guard.step(){because}"
        case "callback":
            return f"by a function of its own{because}"
    return f"{session['mode']}{because}"


def _takes(session: dict[str, Any]) -> str:
    """Return the expected duration of a save and the measured rate of the last saves; "" if there is no measurement yet."""
    seconds, rate = session["save_seconds"], session["rate"]
    if seconds is None or not rate:
        return ""
    return f"; about {seconds:.1f} s at the speed of the last ones ({amount(rate)}/s)"


def _short(session: dict[str, Any]) -> str:
    """Return the progress of the session's save in a few words. The line above the table has the rest."""
    saving = session["saving"]
    if saving is None or not saving["total"] or saving["phase"] not in ("first-byte", "writing"):
        return saving_of(session) or _doing(session) or "training"
    rest = saving["seconds_to_go"]
    words = f"{100 * saving['bytes'] // saving['total']} %"
    return f"{saving['phase']} {words}" if rest is None else f"{words}, {rest:.1f} s to go"


def saving_of(session: dict[str, Any], begin: str = "") -> str:
    """Return the state of the save that a notice began; "" if there is none."""
    saving = session["saving"]
    if saving is None:
        return ""
    words = f"{begin}{saving['phase']}" + (f" {amount(saving['bytes'])}" if saving["bytes"] else "")
    if saving["phase"] in ("first-byte", "writing"):
        words += f" of {amount(saving['total'])}" if saving["total"] else ""
        words += f" at {amount(saving['rate'])}/s" if saving["rate"] is not None else ""
        if (rest := saving["seconds_to_go"]) is not None:
            words += f", {rest:.1f} s to go and {saving['seconds_left']:.1f} s for it"
    return words + (f": {saving['why']}" if saving["why"] else "")
