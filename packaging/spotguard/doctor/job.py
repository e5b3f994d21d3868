"""The job that is registered here: how much it has to save, when a save begins, and how old its newest checkpoint is.

All processes of a machine are noticed together and share its link: their bytes are summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from spotguard.commands.console import ago, amount, count
from spotguard.providers.stores.urls import shown

from .findings import Finding, ok, warning

#: A checkpoint is late where it is older than so many of its intervals: one may be under way.
_LATE = 2.0

Session = Mapping[str, Any]

_NO_JOB = (
    "start it under `spotguard run` and ask again, for the size of its state; a script that never calls "
    "spotguard.register saves nothing"
)


def savers(sessions: Sequence[Session]) -> list[Session]:
    """Those that save by themselves. A function of `on_notice` has no store of ours."""
    return [each for each in sessions if each["store"]]


def nbytes(sessions: Sequence[Session]) -> int:
    """What a notice would have this machine put."""
    return sum(map(_share, savers(sessions)))


def _share(session: Session) -> int:
    """What is held by several ranks is written by one of them: of a rank whose saves have shown its share, that counts."""
    seconds, rate = session.get("save_seconds"), session.get("rate")
    held = int(session["bytes"])
    return min(held, int(seconds * rate)) if seconds is not None and rate else held


def own_seconds(sessions: Sequence[Session]) -> float | None:
    """That a save would take by what the last ones have shown: the slowest rank's. None: none has shown it yet."""
    return max((each["save_seconds"] for each in savers(sessions) if each.get("save_seconds")), default=None)


def look(sessions: Sequence[Session], tried: str) -> Iterator[Finding]:
    """
    Args:
        tried: the URL of the store that was looked at.
    """
    if not sessions:
        yield ok("job", "none is registered here", _NO_JOB, bytes=None)
        return
    saving = savers(sessions)
    if others := sorted({each["name"] for each in sessions if not each["store"]}):
        found = f"{', '.join(others)}: saves by a function of its own (on_notice); how much is not known"
        yield warning("job", found, "see what it takes: spotguard drill", bytes=None)
    if not saving:
        return
    yield _size(saving)
    yield from _elsewhere(saving, tried)
    for run_id in dict.fromkeys(each["run_id"] for each in saving):
        yield _checkpoint(run_id, [each for each in saving if each["run_id"] == run_id])


def _size(saving: Sequence[Session]) -> Finding:
    runs = list(dict.fromkeys(each["run_id"] for each in saving))
    steps = [each["step"] for each in saving if each["step"] >= 0]
    who = f"run {runs[0]}" if len(runs) == 1 else f"{len(runs)} runs ({', '.join(runs)})"
    words = f"{who}: {amount(nbytes(saving))}"
    words += f" of {count(len(saving), 'rank')} here" if len(saving) > 1 else ""
    words += f", step {max(steps)}" if steps else ", no step yet"
    facts: dict[str, Any] = {
        "bytes": nbytes(saving),
        "runs": runs,
        "ranks": len(saving),
        "step": max(steps, default=None),
    }
    modes = sorted({each["mode"] for each in saving})
    boundary = [each for each in saving if each["mode"] == "boundary"]
    if boundary:
        why = f": {boundary[0]['detail']}" if boundary[0]["detail"] else ""
        return warning(
            "job",
            f"{words}, saved at the next guard.step() only{why}",
            "a step's length comes off the window: keep steps short beside it, or remove what is named",
            modes=modes,
            **facts,
        )
    return ok("job", f"{words}, saved at the notice, in the middle of a step too", modes=modes, **facts)


def _elsewhere(saving: Sequence[Session], tried: str) -> Iterator[Finding]:
    """A run that saves to another store: what was found of this one says nothing of that."""
    for run_id, url in dict.fromkeys((str(each["run_id"]), str(each["store"])) for each in saving):
        if _place(url) != _place(tried):
            found = f"run {run_id} saves to {shown(url)}, and that store was not tried"
            yield warning("job", found, f"ask again for that one: --store '{shown(url)}'", run_id=run_id)


def _place(url: str) -> tuple[str, str, str]:
    """What is behind a `?` says how to get there."""
    at = urlsplit(url)
    return at.scheme, at.netloc, at.path.rstrip("/")


def _checkpoint(run_id: str, ranks: Sequence[Session]) -> Finding:
    newest = max(ranks, key=lambda each: int(each["checkpoint_step"]))
    age, interval = newest["checkpoint_age"], newest.get("interval")
    unsaid = "interval" not in newest
    every = "none are made by themselves" if interval is None else f"one is made every {ago(interval)}"
    every = "how often one is made this older agent does not say" if unsaid else every
    facts: dict[str, Any] = {"run_id": run_id, "age_seconds": age, "interval_seconds": interval}
    if age is None:
        words = f"run {run_id}: none yet; {every}"
    else:
        words = f"run {run_id}: of step {newest['checkpoint_step']}, {ago(age)} old; {every}"
    if unsaid:
        return ok("checkpoint", words, **facts)
    if interval is None:
        return warning(
            "checkpoint",
            words,
            "a machine may go without a word: leave --every auto, so that no more than an hour is lost",
            **facts,
        )
    since = newest["for_seconds"] if age is None else age
    if since > _LATE * interval:
        return warning(
            "checkpoint",
            words,
            "look into the job's log: background checkpoints fail, or never begin",
            **facts,
        )
    return ok("checkpoint", words, **facts)
