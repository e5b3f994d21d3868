"""The whole proof: run the lives of a command, compare them with an undisturbed one, and give the verdict."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from spotguard.hooks.restore import proof_file
from spotguard.providers.clock import Clock
from spotguard.providers.redaction import fingerprints
from spotguard.providers.text import ago

from . import compare, copies, evidence, series
from .causes import Cause, causes
from .compare import Difference, Unsteady
from .evidence import Around
from .record import Record, leaks, together
from .runner import Life, ProveError, Runner, write_startup
from .series import SeriesRunner


class ProofVerdict(StrEnum):
    EXACT = "EXACT"
    INEXACT = "INEXACT"
    UNSURE = "UNSURE"


EXIT_CODES = {ProofVerdict.EXACT: 0, ProofVerdict.INEXACT: 1, ProofVerdict.UNSURE: 3}


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A request for a proof; its values are checked already."""

    command: Sequence[str]
    env: Mapping[str, str]
    #: The working directory.
    original: copies.Original
    #: Steps that each run trains.
    steps: int
    #: Steps at which to preempt, beside the events and the kill.
    tries: int
    #: Seconds without a completed step after which a run counts as hung.
    stall: float
    #: The number of lives at one time.
    jobs: int
    #: The limit in bytes for one copy of the working directory.
    most: int
    #: Whether the first run that differs ends all others.
    fail_fast: bool = False
    #: The directory for all files; None: a temporary directory, which is removed at the end.
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """A resumed life, as the page shows it."""

    series: str
    #: How the life before this one ended: "notice", "preempt" or "kill".
    ended_by: str
    #: The step after which it ended.
    ended_at: int
    #: The place in the turn at which it ended.
    place: str
    #: Completed steps at which this life began.
    begin: int
    #: The last step that was compared.
    last: int
    differences: Sequence[Difference] = ()
    #: Why the life failed; "" if it did not.
    failed: str = ""


@dataclass(slots=True)
class Proof:
    """The verdict and its grounds."""

    verdict: ProofVerdict
    steps: int
    world: int
    #: The name of each registered object, and its type.
    kinds: Mapping[str, str]
    resumed: list[Resumed] = field(default_factory=list)
    #: Differences of the first step that has any.
    differences: Sequence[Difference] = ()
    #: The name of the life that differs.
    where: str = ""
    causes: Sequence[Cause] = ()
    #: Files outside the copies that one series wrote and another one read.
    leaks: Sequence[str] = ()
    #: Events around which no preemption could be tried.
    not_tried: Sequence[str] = ()
    #: Events that no resumed life met: each save came behind the event.
    passed_over: Sequence[str] = ()
    #: Registered values that differ between undisturbed runs too.
    unsteady: Sequence[str] = ()
    #: Variables that begin anew after a restore, although the run is exact.
    not_saved: Sequence[str] = ()
    #: Files in the working directory that a resumed life read and the life before it wrote.
    own_files: Sequence[str] = ()
    #: Files that the script wrote in a resumed run with another content than in both undisturbed ones.
    files_differ: Sequence[str] = ()
    #: Whether files were watched from each process's first line on.
    watched: bool = True
    #: Why the recorder could not read variables; "" if it could.
    trouble: str = ""
    #: The number of losses and of model inputs in a run.
    seen: Mapping[str, int] = field(default_factory=dict)
    lives: int = 0
    seconds: float = 0.0
    copy_bytes: int = 0
    shares_blocks: bool = False
    #: Whether the script ended by itself before `--steps`.
    own_end: bool = False
    #: The file that keeps the verdict for the script's next starts, or why none does; "" for a command without a script.
    kept: str = ""


def prove(trial: ProofRequest, clock: Clock, say: Callable[[str], None]) -> Proof:
    """Run all lives and compare them.

    Args:
        say: called with one line for each life that has ended.

    Raises:
        ProveError: no verdict about the command is possible.
        UsageError: the working directory cannot be copied.
    """
    began = clock.monotonic()
    with ExitStack() as stack:
        base = _folder(trial, stack)
        sockets = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
        stack.callback(shutil.rmtree, sockets, ignore_errors=True)
        original = trial.original.outside_of(base)
        size, shares = copies.check_size(original, base, trial.most, trial.jobs)
        try:
            write_startup(base / "startup")
            runner = Runner(
                trial.command,
                trial.env,
                trial.steps,
                trial.stall,
                sockets,
                clock,
                keeps=trial.folder is not None,
            )
            lived = SeriesRunner(runner, original, base, base / "startup", trial.jobs, say)
            proof = _prove(trial, lived, base, say)
        except OSError as error:
            raise ProveError(
                f"copies and records cannot be written to {base}: {error.strerror}; make room there, or name another directory "
                "with --folder"
            ) from error
        proof.lives, proof.seconds = lived.count, clock.monotonic() - began
        proof.copy_bytes, proof.shares_blocks = size, shares
        proof.kept = _keep(trial, proof, lived.lives[series.UNDISTURBED[0].name][0])
        return proof


def _keep(trial: ProofRequest, proof: Proof, life: Life) -> str:
    """Write the verdict beside the script, and return the file, or why it cannot be written; "" if there is no script."""
    record = life.records[0]
    if not record.script:
        return ""

    root = str(life.workdir).removesuffix(str(trial.original.folder))  # it stands for /

    def original(path: str) -> str:
        return path.replace(root, "")

    body = {
        "verdict": str(proof.verdict),
        "steps": proof.steps,
        "arguments": fingerprints([original(word) for word in record.arguments]),
        "registered": dict(proof.kinds),
        "versions": dict(record.versions),
    }
    code = {original(path): digest for rank in life.records for path, digest in rank.code.items()}
    try:
        return str(proof_file.write(Path(original(record.script)), body, code))
    except (OSError, ValueError) as error:
        return f"not kept for the script's next starts: {error}"


def _folder(trial: ProofRequest, stack: ExitStack) -> Path:
    if trial.folder is not None:
        return trial.folder
    made = Path(os.path.realpath(tempfile.mkdtemp(prefix="spotguard-prove-")))
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return made


def _prove(trial: ProofRequest, lived: SeriesRunner, base: Path, say: Callable[[str], None]) -> Proof:
    least = len(series.UNDISTURBED) + trial.tries + 3  # a resume behind the last try, and the kill
    # Around each event, behind guard.save(), and behind a late change.
    most = least + 4 * len(series.EVENTS) + 3
    say(
        f"{least} to {most} runs of up to {trial.steps} steps, by the epochs, evaluations and saves that they meet; the first two "
        "show how many, and how long they take"
    )
    lived.run(series.UNDISTURBED)
    first, second = (lived.lives[each.name][0] for each in series.UNDISTURBED)
    steps = _steps(first, second)
    plain, pairs = first.records, list(zip(first.records, second.records, strict=True))
    left_out = [compare.unsteady(*pair) for pair in pairs]
    around = Around(threads=_threads(first, second))
    proof = Proof(
        verdict=ProofVerdict.EXACT,
        steps=steps,
        world=plain[0].world,
        kinds=plain[0].kinds,
        not_tried=series.not_tried(plain[0], steps),
        unsteady=sorted({name for each in left_out for kind, name in each.items if kind == "state"}),
        seen={what: sum(len(look.values(what)) for look in plain[0].after(1)) for what in ("input", "loss")},
        own_end=plain[0].ended == "own end" and steps < trial.steps,
        trouble=next((record.trouble for record in plain if record.trouble), ""),
    )
    per_rank = [compare.differences(*pair, out) for pair, out in zip(pairs, left_out, strict=True)]
    if differing := _first(per_rank):
        rank = differing[0].rank
        proof.verdict, proof.differences, proof.where = ProofVerdict.UNSURE, differing, second.name
        proof.causes = causes(evidence.of_undisturbed(*pairs[rank], per_rank[rank], around))
    else:
        around_events = [*series.around_events(plain[0], steps)]
        disturbed = [
            series.preempted(plain[0], steps, trial.tries),
            series.killed(steps),
            *around_events,
        ]
        runs = sum(len(each.actions) for each in disturbed)
        seconds = lived.seconds(disturbed, max(first.seconds, second.seconds))
        say(f"{runs} more runs, about {ago(seconds)}")

        #: The differences between each resumed life and the undisturbed one, by the life's name and by rank.
        judged: dict[str, list[list[Difference]]] = {}

        def judge(life: Life) -> str:
            each = zip(plain, _padded(life, plain), left_out, strict=False)
            judged[life.name] = [
                compare.differences(one.as_begun(other), other, out) for one, other, out in each
            ]
            if life.failed or any(record.elsewhere for record in life.records):
                return life.failed or "it restores another run"
            found = _first(judged[life.name])
            return f"{found[0].words} differs at step {found[0].step}" if found else ""

        lived.run(disturbed, judge, fail_fast=trial.fail_fast)
        _explain(lived, proof, plain, left_out, around, judged)
        proof.passed_over = [
            each.name for each in around_events if series.passed_over(each, lived.lives[each.name])
        ]
        proof.files_differ = _files_that_differ(lived)
    every = [life for of in lived.lives.values() for life in of]
    names = dict.fromkeys(life.records[0].said for life in every if life.records)
    if len(names) > 1 and proof.verdict is ProofVerdict.EXACT:
        proof.verdict, proof.where = ProofVerdict.INEXACT, second.name
        proof.causes = causes(evidence.Evidence(first=None, names=tuple(names)))
    of_each = [together([life.files.outside(base) for life in of]) for of in lived.lives.values()]
    proof.leaks = leaks(of_each)
    proof.watched = all(record.early for life in every for record in life.records)
    if proof.leaks:
        proof.verdict = ProofVerdict.UNSURE
    return proof


def _steps(first: Life, second: Life) -> int:
    """Return the number of steps that both undisturbed lives have completed.

    Raises:
        ProveError: the lives completed too few steps, or none that spotguard could see.
    """
    for life in (first, second):
        if not life.records:
            raise ProveError(
                "the command ended without a call of spotguard.register; name the command that trains, with a Python that "
                f"spotguard is installed in ({life.output})"
            )
        if life.began is None:
            raise ProveError(
                "the command called register and not restore; call done = guard.restore() before the loop "
                f"({life.output})"
            )
        if steps := max(record.never for record in life.records):
            raise ProveError(
                f"the command trained {steps} optimizer steps and never called guard.step(); call it once at the end of each "
                "turn of the loop"
            )
    if len(first.records) != len(second.records):
        raise ProveError(
            f"{len(first.records)} ranks registered in one run and {len(second.records)} in another; start the same number "
            "each time"
        )
    last = min(record.last for life in (first, second) for record in life.records)
    if last < series.FEWEST_STEPS:
        raise ProveError(
            f"the command came to {last} completed steps, too few to be preempted inside: expected {series.FEWEST_STEPS} or "
            "more; have it train longer"
        )
    return last


def _explain(
    lived: SeriesRunner,
    proof: Proof,
    plain: Sequence[Record],
    left_out: Sequence[Unsteady],
    around: Around,
    judged: Mapping[str, Sequence[list[Difference]]],
) -> None:
    """Add each resumed life to the proof. The first life that differs gives the causes."""
    for name, of in lived.lives.items():
        for before, life in pairwise(of):
            records, per_rank = _padded(life, plain), judged[life.name]
            differing = _first(per_rank)
            own = sorted(life.files.within(life.workdir).reads() & before.files.within(life.workdir).writes())
            proof.own_files = [*dict.fromkeys([*proof.own_files, *own])]
            proof.resumed.append(_resumed(name, before, life, differing))
            rank = differing[0].rank if differing else 0
            known = Around(around.threads, tuple(own), life.failed)
            undisturbed = plain[rank].as_begun(records[rank])
            facts = evidence.of_resumed(undisturbed, records[rank], per_rank[rank], left_out[rank], known)
            if not (differing or life.failed or facts.elsewhere):
                stale = [each.name for each in facts.stale if not each.is_length]
                proof.not_saved = [*dict.fromkeys([*proof.not_saved, *stale])]
                continue
            if proof.verdict is ProofVerdict.EXACT:
                proof.verdict, proof.differences, proof.where = ProofVerdict.INEXACT, differing, life.name
                proof.causes = causes(facts)
            break  # a life resumed from one that differs shows nothing new


def _padded(life: Life, plain: Sequence[Record]) -> list[Record]:
    """Return a record for each rank, an empty one for a rank that did not come back."""
    return [*life.records, *(Record(began=life.began) for _ in plain[len(life.records) :])]


def _files_that_differ(lived: SeriesRunner) -> list[str]:
    """Return files that both undisturbed series wrote alike, and a completed series otherwise.

    Lines that a killed run repeats do not count: it trains the steps behind its checkpoint again, and appends them to its log again.
    """
    first, second = (lived.written.get(each.name, {}) for each in series.UNDISTURBED)
    alike = {path: written for path, written in first.items() if second.get(path) == written}
    return sorted(
        path
        for path, written in alike.items()
        if any(
            path not in of
            or not (of[path] == written or (name == series.KILLED and of[path][1] == written[1]))
            for name, of in lived.written.items()
        )
    )


def _resumed(series: str, before: Life, life: Life, differing: Sequence[Difference]) -> Resumed:
    acting = next((record for record in before.records if record.acted_at is not None), None)
    at, place = (before.last, "boundary") if acting is None or acting.acted_at is None else acting.acted_at
    by = (acting.asked if acting is not None else "") or "preempt"
    return Resumed(series, by, at, place, life.began or 0, life.last, differing, life.failed)


def _first(per_rank: Sequence[Sequence[Difference]]) -> list[Difference]:
    """Return the differences of the rank that differs first."""
    some = [(differing[0].step, rank) for rank, differing in enumerate(per_rank) if differing]
    if not some:
        return []
    _, rank = min(some)
    return [replace(each, rank=rank) for each in per_rank[rank]]


def _threads(*of: Life) -> tuple[str, ...]:
    """Return the places where the script has started threads, by paths below its directory."""
    places = (
        place.removeprefix(f"{os.path.realpath(life.workdir)}{os.sep}")
        for life in of
        for place in life.files.threads
    )
    return tuple(dict.fromkeys(places))
