"""One life of a machine in virtual time: background checkpoints, a preemption, and what is kept of the work.

What decides is the product's own: the interval (`CheckpointSchedule`), what is known of the link (`StoreLink`) and the plan of the
emergency save (`plan`, `replan`). What is assumed is everything else:

- A save takes bytes by the link's rate, and a commit. The rate is drawn for each life around the job's, and moves every
  half second; nobody knows it but by the bytes that have gone. Nothing fails.
- Parameters and extras, a third of the bytes, go before the moments.
- A background checkpoint blocks training for a copy in memory and slows it by a fiftieth while it uploads. Neither takes
  from the work that is counted, which is the same for all that are compared.
- The hook is told after a poll of the notice; from there on nothing is trained, and the last whole step is saved.
- Of the lower level nothing counts: a restore has to ask for it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from spotguard.hooks.commit.plan.throughput import StoreLink
from spotguard.hooks.save.emergency.budget import (
    BudgetChoice,
    BudgetInputs,
    BudgetPlan,
    EarlierCheckpoint,
    SaveSizes,
    StoredBytes,
    UploadInProgress,
    plan,
    replan,
)
from spotguard.hooks.save.schedule import CheckpointSchedule, lost_training

#: Seconds: a step of training, a commit, and how often the link's rate moves and the plan is looked at.
STEP, COMMIT, TICK = 0.5, 0.1, 0.5
#: Standard deviations of a life's rate and of a tick's, as shares.
_LIVES, _TICKS = 0.15, 0.1
_COPY = 4e9  # bytes a second
_SLOWER = 0.02
#: Uploads before the notice that the link is told of: it forgets older ones.
_TOLD = 4


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained: bytes of its state, and bytes a second of its link."""

    nbytes: int
    rate: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Seconds: the window, what of it is kept for the end, and until the hook is told."""

    window: float
    reserve: float
    delay: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Seconds of training that have to be done again."""

    ours: float
    #: With the same background checkpoints and no look at the notice.
    periodic: float
    #: Who knows the rate beforehand, is told at once, and commits in no time: what the window allows.
    allowed: float


@dataclass(frozen=True, slots=True)
class _Upload:
    """A background checkpoint: the work in it, begin of its bytes, and commit."""

    step: float
    begin: float
    end: float


def live(job: Job, mean: float, notice: Notice | None, dice: random.Random) -> Lost:
    """From a machine's start to its end, by a preemption with this notice, or without any."""
    at = dice.expovariate(1 / mean)
    rate = job.rate * math.exp(dice.gauss(0, _LIVES))
    end = at + (notice.window if notice else 0.0)
    uploads = _background(job, rate, mean, end)
    done = _whole(at)
    periodic = max(0.0, done - _newest(uploads, end))
    if notice is None:
        return Lost(periodic, periodic, periodic)
    by = end - notice.reserve
    allowed = done if job.nbytes / rate <= by - at else _newest(uploads, by)
    kept = _emergency(job, rate, uploads, at + notice.delay, by, dice)
    return Lost(max(0.0, done - kept), periodic, max(0.0, done - allowed))


def _background(job: Job, rate: float, mean: float, until: float) -> list[_Upload]:
    clockwork, uploads = CheckpointSchedule("auto", 0.0), list[_Upload]()
    clockwork.loses_every(mean)
    copy, upload = job.nbytes / _COPY, job.nbytes / rate + COMMIT
    cost = lost_training(copy, upload, 1.0, 1 - _SLOWER)
    while clockwork.due < until:
        now = clockwork.due
        clockwork.begun(now)
        uploads.append(_Upload(_whole(now), now + copy, now + copy + upload))
        clockwork.saved(uploads[-1].end, upload, cost)
    return uploads


def _emergency(
    job: Job, rate: float, uploads: list[_Upload], told: float, by: float, dice: random.Random
) -> float:
    """The work in what is committed at the end."""
    link, step = StoreLink(), _whole(told)
    begun = [each for each in uploads if each.begin <= told]
    last = _newest(begun, told)
    under_way = begun[-1] if begun and begun[-1].end > told else None
    for each in begun[-_TOLD:]:
        _tell(link, each, rate, min(told, each.end - COMMIT))
        if each.end <= told:
            link.committed(COMMIT)
    third = job.nbytes // 3
    left = 0 if under_way is None else max(0, round((under_way.end - COMMIT - told) * rate))
    at = BudgetInputs(
        told, by, _number(step), SaveSizes(third, job.nbytes - third), link.rate(told), link.commit or COMMIT,
        None if under_way is None else UploadInProgress(_number(under_way.step), step - under_way.step, left),
        EarlierCheckpoint(_number(last), step - last) if last else None,
    )  # fmt: skip
    chosen = plan(at)
    if chosen.choice is BudgetChoice.KEEP:
        return last
    if chosen.choice is not BudgetChoice.PROMOTE:
        link.begin(told)
    return _upload(chosen, at, job, rate, link, step, under_way, last, dice)


def _upload(
    chosen: BudgetPlan,
    at: BudgetInputs,
    job: Job,
    rate: float,
    link: StoreLink,
    step: float,
    under_way: _Upload | None,
    last: float,
    dice: random.Random,
) -> float:
    """Tick by tick, until it is committed or time is over. A plan that becomes another one begins with its own bytes."""
    now, sent = at.now, 0.0
    whole = at.background.left if chosen.choice is BudgetChoice.PROMOTE and at.background else job.nbytes
    lower = False
    while now < at.deadline:
        tick = rate * math.exp(dice.gauss(0, _TICKS))
        need = max(0.0, whole - sent) / tick
        if need <= TICK:
            end = now + need + COMMIT
            if end > at.deadline:
                return last
            return under_way.step if chosen.choice is BudgetChoice.PROMOTE and under_way else step
        now, sent = now + TICK, sent + tick * TICK
        if chosen.choice is not BudgetChoice.PROMOTE:
            link.sent(round(sent), now)
        rest = None if at.background is None else replace(at.background, left=max(0, round(whole - sent)))
        here = replace(
            at,
            now=now,
            rate=link.rate(now),
            background=rest if chosen.choice is BudgetChoice.PROMOTE else None,
        )
        before = chosen
        if not lower:  # a save whose weights are committed goes on, and plans no more
            chosen = replan(chosen, here, _landed(sent, at.sizes.a))
        if chosen.choice is not before.choice and before.choice is BudgetChoice.PROMOTE:
            sent, whole = 0.0, job.nbytes  # the state of now, from its first byte
            link.begin(now)
        if (chosen.lower_first or now >= chosen.fall_back_at) and sent >= at.sizes.a and not lower:
            now, lower = now + COMMIT, True
    return last


def _landed(sent: float, a: int) -> StoredBytes:
    gone = round(sent)
    return StoredBytes(a=min(a, gone), b=max(0, gone - a), b_begun=gone > a)


def _tell(link: StoreLink, upload: _Upload, rate: float, until: float) -> None:
    link.begin(upload.begin)
    now = upload.begin
    while now + TICK < until:
        now += TICK
        link.sent(round((now - upload.begin) * rate), now)
    link.sent(round((until - upload.begin) * rate), until)
    link.end(until)


def _newest(uploads: list[_Upload], by: float) -> float:
    return max((each.step for each in uploads if each.end <= by), default=0.0)


def _whole(now: float) -> float:
    """The work of the whole steps by then."""
    return now // STEP * STEP


def _number(work: float) -> int:
    return round(work / STEP)
