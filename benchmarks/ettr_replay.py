"""The ETTR of a job over a real trace of spot machines, with failures, in virtual time: spotguard beside periodic checkpoints alone.

**The trace** has how many of four p3.2xlarge ran in each of three zones of AWS, every five minutes of 13 to 18 days of August 2023
(github.com/skypilot-org/spot-traces at 221da1a, preemption/4-node, of "Can't Be Late", NSDI 2024). `SPELLS` has the spells in which all
four ran, in ticks of five minutes: the job trains in them, each ends by a preemption, and the time between them is queueing, which
the ETTR leaves out. More machines are preempted as often each: a spell of N machines is drawn around 4 / N of the mean.

**Failures** come by chance. Of hardware and network, a job on 128 machines of 8 A100s has one in 7.9 h (Meta's RSC clusters, arXiv
2410.21680): every machine has the same share of that. Their kinds are those of 419 interruptions of Llama 3 (arXiv 2407.21783, table 5).
The job's own failures (memory, a worker, data, a disk, a kill, a hang) are assumed to come as often again, each kind like the others.

The other assumptions:

- The seconds in which a job is down are those that were measured on the rack for that kind, whose four machines import torch on two
  cores. Reading the state again takes its bytes by the link's rate, and 15 % more; a save takes its bytes, and a commit. A job's own
  start, such as a compilation, takes the seconds that each row names.
- Both ways make background checkpoints at the interval that Daly gives: without spotguard for the true mean time between
  interruptions, and with it as spotguard estimates the time between ends that lose training (`schedule.mean_between`), from twenty
  attempts. Those are errors of a GPU and deaths.
- With spotguard, the end of an error or a stall commits the step. An error of the GPU does not, and loses what was trained since the
  newest background checkpoint. So does a death, if that checkpoint is at most 100 steps of half a second older: it has the dead
  rank's extras (`--extras-worth`).
- At a notice of 120 s, spotguard saves and leaves. The rest of the window is queueing. A job without it trains on until the machine
  goes.
- Without spotguard, every interruption loses what was trained since the newest checkpoint. A hang, and a machine that is gone without a
  word, last until NCCL's default time-out of ten minutes. Then everything begins again as fast as with spotguard after an error of the
  GPU, at which nothing is saved.
- Failures come while the job trains. A failed machine is there again for the next start, or its replacement's wait is queueing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from spotguard.hooks.save.schedule import PRIOR, best_interval, lost_training

from .interruptions import CUT, LOST, PREEMPTION, WINDOW, InterruptionCost
from .replay import STEP, Job
from .rows import Row

TICK = 300.0
SPELLS: dict[str, tuple[int, ...]] = {
    "us-east-1f": (
        *(2, 1, 44, 7, 3, 8, 11, 4, 7, 10, 16, 5, 11, 3, 7, 9, 3, 30, 5, 35, 2, 4, 3, 13, 27, 7, 39, 60, 62),
        *(17, 82, 6, 3, 18, 20, 34, 185, 1, 35, 9, 58, 12, 63, 20, 36, 1, 10, 7, 4, 4, 5, 40, 6),
    ),
    "us-east-2a": (
        *(312, 20, 15, 3, 14, 31, 12, 172, 126, 255, 21, 31, 10, 373, 40, 63, 18, 70, 5, 2, 152, 189, 71),
        *(15, 1, 19, 2, 107, 342, 1, 17, 647, 44, 97, 3, 355),
    ),
    "us-west-2c": (
        *(28, 6, 17, 62, 13, 3, 21, 46, 157, 23, 21, 20, 55, 125, 131, 47, 124, 19, 12, 122, 10, 163, 197),
        *(27, 10, 20, 171, 6, 100, 326, 18, 17, 11, 5, 60, 4, 5, 4, 125, 157, 24, 2, 10, 3, 5, 28, 20, 96),
        *(6, 112, 17, 12, 28, 12, 3, 5, 3, 2, 2, 10, 6, 23, 25, 3, 11, 12, 2, 21, 11, 40, 105, 21, 13, 24),
        *(38, 3, 2, 40, 28, 91, 124, 97, 15, 294, 14, 17, 1, 2, 19, 23, 38),
    ),
}
TRACED = 4
#: Failures of hardware in one second of one machine.
HARDWARE = 1.0 / (128 * 7.9 * 3600.0)
#: By kind, Llama 3's: GPUs and their memory; software; network; maintenance and hosts; NCCL's watchdog.
SHARES = {"gpu": 268, "program": 56, "network": 21, CUT: 21, LOST: 46, "stall": 7}
OWN = ("host-memory", "loader-worker", "data", "disk-full", "killed", "stall")
#: NCCL's default time-out (torch.distributed.init_process_group), in seconds.
TIMEOUT = 600.0
#: Kinds by which a process or its machine dies without a word, and those that a job alone hears of by a time-out.
_DEATHS, _SILENT = frozenset({"killed", "host-memory", LOST}), frozenset({"stall", LOST})
#: The newest attempts, from which spotguard estimates the time between losses.
ATTEMPTS = 20
#: The share of failures that may lose training: half are the job's own, the others have their shares.
_LOSING = 0.5 * sum(kind in _DEATHS for kind in OWN) / len(OWN) + 0.5 * (SHARES["gpu"] + SHARES[LOST]) / sum(
    SHARES.values()
)
#: As in `replay`: bytes that are copied in a second, seconds of a commit, and the share by which an upload slows training.
_COPY, _COMMIT, _SLOWER = 4e9, 0.1, 0.02
#: Seconds of training that the extras of a dead rank are worth.
_EXTRAS = 100 * STEP
#: Seconds until a notice is seen; a restore by its bytes and the link.
_DELAY, _RESTORE = 1.0, 1.15


@dataclass(slots=True)
class LifeTime:
    """Seconds of machines that were there, and of training that counts."""

    wall: float = 0.0
    useful: float = 0.0

    @property
    def lost(self) -> float:
        """The percentage that was not effective: 100 less the ETTR."""
        return 100.0 * (1.0 - self.useful / self.wall)


class JobReplay:
    """A job on some machines, over spells in which all are there.

    Args:
        job: bytes of state of each machine, and its link.
        machines: how many.
        costs: what interruptions cost on the rack.
        start: seconds of the job's own start.
        apart: mean seconds between preemptions.
    """

    def __init__(
        self,
        job: Job,
        machines: int,
        costs: Mapping[str, Sequence[InterruptionCost]],
        start: float,
        apart: float,
    ) -> None:
        self._costs = costs
        #: Of hardware, and as many of the job itself.
        self._rate = 2 * HARDWARE * machines
        self._upload = job.nbytes / job.rate + _COMMIT
        self._again = _RESTORE * job.nbytes / job.rate + start
        #: By way: seconds between two background checkpoints, and seconds of training in a second between interruptions.
        self._interval, self._speed = {}, {}
        interruptions = 1.0 / apart + self._rate
        lived = ATTEMPTS / interruptions
        estimated = (PRIOR + lived) / (1.0 + lived * self._rate * _LOSING)
        for guarded, mean in ((True, estimated), (False, 1.0 / interruptions)):
            cost = lost_training(job.nbytes / _COPY, self._upload, 1.0, 1 - _SLOWER)
            self._interval[guarded] = best_interval(self._upload, cost, mean)
            self._speed[guarded] = 1.0 - cost / (self._interval[guarded] + self._upload)

    def lived(self, spells: Sequence[float], dice: Random, *, guarded: bool) -> LifeTime:
        """Return the time of these spells, in seconds each."""
        total = LifeTime()
        for spell in spells:
            one = self._spell(spell, dice, guarded)
            total.wall += one.wall
            total.useful += one.useful
        return total

    def _spell(self, spell: float, dice: Random, guarded: bool) -> LifeTime:
        end = max(0.0, spell - WINDOW + _DELAY) if guarded else spell
        # A job of which nothing was ready yet has nothing to save.
        now, useful = self._down(PREEMPTION, dice, guarded) + self._again, 0.0
        while True:
            fails = now + dice.expovariate(self._rate)
            trained = max(0.0, min(fails, end) - now)
            if fails >= end:
                if guarded:
                    saved = self._upload if trained else 0.0
                    return LifeTime(end + saved, useful + trained * self._speed[guarded])
                return LifeTime(end, useful + self._checkpointed(trained, guarded) * self._speed[guarded])
            kind = self._kind(dice)
            keeps = guarded and kind != "gpu"
            checkpointed = self._checkpointed(trained, guarded)
            if kind in _DEATHS and trained - checkpointed <= _EXTRAS:
                keeps = False
            useful += (trained if keeps else checkpointed) * self._speed[guarded]
            now = fails + self._down(kind, dice, guarded)
            if kind != CUT or not guarded:  # a cut that heals ends no process
                now += self._again
            now += self._upload if keeps else 0.0

    def _checkpointed(self, trained: float, guarded: bool) -> float:
        """The part of what was trained since the last start that the newest background checkpoint has."""
        each = self._interval[guarded] + self._upload
        return max(0.0, (trained // each) * each - self._upload)

    def _kind(self, dice: Random) -> str:
        if dice.random() < 0.5:
            return dice.choice(OWN)
        return dice.choices(list(SHARES), list(SHARES.values()))[0]

    def _down(self, kind: str, dice: Random, guarded: bool) -> float:
        if guarded:
            return dice.choice(self._costs.get(kind) or self._costs["killed"]).down
        silence = TIMEOUT if kind in _SILENT else 0.0
        return silence + dice.choice(self._costs.get("gpu") or self._costs["killed"]).down


def replayed(
    costs: Mapping[str, Sequence[InterruptionCost]], job: Job, times: int, seed: int
) -> Iterator[Row]:
    """Yield the percentages that are not effective, by zone of the trace, by machines, and by the job's own start."""
    every = [ticks for zone in SPELLS.values() for ticks in zone]
    mean = TICK * sum(every) / len(every)
    for zone, ticks in SPELLS.items():
        apart = TICK * sum(ticks) / len(ticks)
        yield from _pair(
            f"{TRACED} machines, {zone}", JobReplay(job, TRACED, costs, 0.0, apart), ticks, times, seed
        )
    for start in (0.0, 60.0):
        what = f"{TRACED} machines, all zones{f', own start {start:.0f} s' if start else ''}"
        yield from _pair(what, JobReplay(job, TRACED, costs, start, mean), every, times, seed)
    for machines in (8, 16, 32):
        apart = mean * TRACED / machines
        dice = Random(f"{seed} spells of {machines}")
        drawn = [dice.expovariate(TICK / apart) for _ in range(sum(every) * machines // TRACED // 60)]
        yield from _pair(
            f"{machines} machines", JobReplay(job, machines, costs, 0.0, apart), drawn, times, seed
        )


def _pair(what: str, replay: JobReplay, ticks: Sequence[float], times: int, seed: int) -> Iterator[Row]:
    spells = [TICK * each for each in ticks]

    def lost(guarded: bool) -> tuple[float, ...]:
        dice = Random(f"{seed} {what}")
        return tuple(replay.lived(spells, dice, guarded=guarded).lost for _ in range(times))

    ours, periodic = lost(True), lost(False)
    name = f"not effective (100 % − ETTR), {what}"
    peer = sorted(periodic)[len(periodic) // 2]
    yield Row(f"{name}: spotguard", "%", ours, figure=3.0, peer=peer, peer_name="periodic checkpoints alone")
    yield Row(f"{name}: periodic checkpoints alone", "%", periodic)
