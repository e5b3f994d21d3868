"""The check of the job registered here: the size of its state, when a save begins, and the age of its newest checkpoint.

All processes of a machine get a notice together and share its link, so their bytes are summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from spotguard.hooks.restore.proof_file import is_exact
from spotguard.providers.stores.url import shown
from spotguard.providers.text import ago, amount, count

from ..finding import Finding, fails, ok, warning

#: Intervals after which a checkpoint is late. One interval is not enough, because a new checkpoint may be in progress.
_LATE = 2.0

Session = Mapping[str, Any]

_NO_JOB = (
    "start it under `spotguard run` and ask again, for the size of its state; a script that never calls "
    "spotguard.register saves nothing"
)


def savers(sessions: Sequence[Session]) -> list[Session]:
    """Return the sessions that save through spotguard. A function of `on_notice` has no store of ours."""
    return [each for each in sessions if each["store"]]


def nbytes(sessions: Sequence[Session]) -> int:
    """Return the bytes that this machine would put at a notice."""
    return sum(map(_share, savers(sessions)))


def _share(session: Session) -> int:
    """Return the bytes that this rank writes.

    If several ranks hold a tensor, one of them writes it. Once a rank's saves have shown its share, that share counts.
    """
    seconds, rate = session["save_seconds"], session["rate"]
    held = int(session["bytes"])
    return min(held, int(seconds * rate)) if seconds is not None and rate else held


def own_seconds(sessions: Sequence[Session]) -> float | None:
    """Return the seconds that a save takes by the slowest rank's last saves; None if no rank has made one."""
    return max((each["save_seconds"] for each in savers(sessions) if each["save_seconds"]), default=None)


def look(
    sessions: Sequence[Session], tried: str, run_id: str = "", others: Sequence[Session] = ()
) -> Iterator[Finding]:
    """Yield the findings about the job.

    Args:
        sessions: the registered training processes.
        tried: the URL of the store that the visit checked.
        run_id: the run that was named; "" for all.
        others: sessions of other runs, if a run was named.
    """
    beside = list(dict.fromkeys(str(each["run_id"]) for each in others))
    if not sessions:
        yield _nobody(run_id, beside)
        return
    if beside:
        found = f"{', '.join(beside)}: registered here too, saved at the same notice over the same link, and not counted"
        yield warning("job", found, "ask for all of them: leave out --run-id and the command", others=beside)
    saving = savers(sessions)
    if others := sorted({each["name"] for each in sessions if not each["store"]}):
        found = f"{', '.join(others)}: saves by a function of its own (on_notice); how much is not known"
        yield warning("job", found, "see what it takes: spotguard drill", bytes=None)
    if not saving:
        return
    yield from _elsewhere(saving, tried)
    runs = {run_id: _of(saving, run_id) for run_id in dict.fromkeys(str(each["run_id"]) for each in saving)}
    for run_id, ranks in runs.items():
        yield from of_run(run_id, ranks)
    if len(runs) > 1:
        found = f"{len(runs)} runs ({', '.join(runs)}): {amount(nbytes(saving))} together, over one link"
        yield ok("job", found, **_facts(saving))
    for run_id, ranks in runs.items():
        yield _checkpoint(run_id, ranks)


def _of(sessions: Sequence[Session], run_id: str) -> list[Session]:
    return [each for each in sessions if each["run_id"] == run_id]


def _nobody(run_id: str, beside: list[str]) -> Finding:
    if not beside:
        return ok("job", "none is registered here", _NO_JOB, bytes=None, others=[])
    found = f"none of run {run_id} is registered here; registered are {', '.join(beside)}"
    advice = f"pass the intended one, as in --run-id {beside[0]}, or start {run_id} and ask again"
    return warning("job", found, advice, bytes=None, others=beside)


def of_run(run_id: str, ranks: Sequence[Session]) -> Iterator[Finding]:
    """Yield the findings about the ranks of one run on this machine: their state, their proof, and each misuse by the script."""
    yield _size(run_id, ranks)
    for attached in dict.fromkeys(str(each["attached"]) for each in ranks if each.get("attached")):
        yield ok("job", f"run {run_id}: attached to {attached}", run_id=run_id, attached=attached)
    # A trial has no proof: its own runs are trials.
    for proof in dict.fromkeys(str(each["proof"]) for each in ranks if each.get("proof")):
        yield _proof(run_id, proof)
    yield from _misuse(run_id, ranks)


def _size(run_id: str, ranks: Sequence[Session]) -> Finding:
    facts = _facts(ranks)
    words = f"run {run_id}: {amount(nbytes(ranks))}"
    words += f" of {count(len(ranks), 'rank')} here" if len(ranks) > 1 else ""
    words += f", step {facts['step']}" if facts["step"] is not None else ", no step yet"
    boundary = [each for each in ranks if each["mode"] == "boundary"]
    if boundary:
        why = f": {boundary[0]['detail']}" if boundary[0]["detail"] else ""
        return warning(
            "job",
            f"{words}, saved at the next guard.step() only{why}",
            "a step's length comes off the window: keep steps short beside it, or remove what is named",
            **facts,
        )
    return ok("job", f"{words}, saved at any moment of a step", **facts)


def _proof(run_id: str, proof: str) -> Finding:
    if is_exact(proof):
        return ok("job", f"run {run_id}: {proof}", run_id=run_id, proof=proof)
    return warning(
        "job",
        f"run {run_id}: {proof}",
        "type spotguard prove -- COMMAND, with its training command, before the next start",
        run_id=run_id,
        proof=proof,
    )


def misuse(sessions: Sequence[Session]) -> list[str]:
    """Return each misuse of spotguard by the scripts, once."""
    return [*dict.fromkeys(str(each["misuse"]) for each in sessions if each["misuse"])]


def _misuse(run_id: str, ranks: Sequence[Session]) -> Iterator[Finding]:
    for wrong in misuse(ranks):
        found, _, advice = wrong.partition("; ")
        yield fails("job", f"run {run_id}: {found}", advice, run_id=run_id, misuse=wrong)


def _facts(saving: Sequence[Session]) -> dict[str, Any]:
    runs = list(dict.fromkeys(each["run_id"] for each in saving))
    steps = [each["step"] for each in saving if each["step"] >= 0]
    return {
        "bytes": nbytes(saving),
        "runs": runs,
        "ranks": len(saving),
        "step": max(steps, default=None) if len(runs) == 1 else None,  # each run counts its own steps
        "modes": sorted({each["mode"] for each in saving}),
    }


def _elsewhere(saving: Sequence[Session], tried: str) -> Iterator[Finding]:
    """Yield a warning for each run that saves to another store, because the visit did not check that store."""
    for run_id, url in dict.fromkeys((str(each["run_id"]), str(each["store"])) for each in saving):
        if _place(url) != _place(tried):
            found = f"run {run_id} saves to {shown(url)}, and that store was not tried"
            yield warning("job", found, f"ask again for that one: --store '{shown(url)}'", run_id=run_id)


def _place(url: str) -> tuple[str, str, str]:
    """Return scheme, host and path of a store's URL. The query only says how to reach it."""
    at = urlsplit(url)
    return at.scheme, at.netloc, at.path.rstrip("/")


def _checkpoint(run_id: str, ranks: Sequence[Session]) -> Finding:
    newest = max(ranks, key=lambda each: int(each["checkpoint_step"]))
    age, interval = newest["checkpoint_age"], newest["interval"]
    every = "none are made by themselves" if interval is None else f"one is made every {ago(interval)}"
    facts: dict[str, Any] = {"run_id": run_id, "age_seconds": age, "interval_seconds": interval}
    if age is None:
        damaged = newest["damaged_checkpoint"]
        words = f"run {run_id}: none{f': {damaged} is damaged' if damaged else ' yet'}; {every}"
    else:
        words = f"run {run_id}: of step {newest['checkpoint_step']}, {ago(age)} old; {every}"
    if interval is None:
        return warning(
            "checkpoint",
            words,
            "a machine may go without a word: leave --every auto, so that no more than an hour is lost",
            **facts,
        )
    # A run that has just resumed is not late: its newest checkpoint may be older than this machine.
    since = min(newest["for_seconds"] if age is None else age, newest["for_seconds"])
    if since > _LATE * interval:
        return warning(
            "checkpoint",
            words,
            "look into the job's log: background checkpoints fail, or never begin",
            **facts,
        )
    return ok("checkpoint", words, **facts)
