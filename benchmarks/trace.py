"""Work kept over a seeded trace of preemptions, replayed in virtual time, beside periodic checkpoints alone.

Each cloud's windows as it gives them, and none at all; each for three jobs of which a save takes 2, 9 and 18 s. Both
ways make the same background checkpoints, at the interval that Daly gives; they differ in what they do with a notice.
"What the window allows" is what somebody would keep who knew the link's rate beforehand and lost no time in it (of the
window, the reserve is no one's: in it the command is ended). The model's assumptions stand in `replay`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spotguard.hooks.save.schedule import PRIOR

from .replay import Job, Lost, Notice, live
from .rows import Row
from .scale import Scale

SEED = 4
#: Through 10 Gbit/s, of which one Python process fills 0.9 GB/s (research: NVIDIA's multi-storage client).
JOBS = tuple(Job(nbytes, 0.9e9) for nbytes in (2 * 10**9, 8 * 10**9, 16 * 10**9))

#: Seconds from a notice being visible to the hook being told, at most: a poll a second; GCP's is a hanging GET.
_POLLED, _HANGING = 1.02, 0.05
#: DESIGN 2: the reserve is the larger of 3 s and a tenth of the window.
_LEAST, _SHARE = 3.0, 0.1


@dataclass(frozen=True, slots=True)
class Cloud:
    """Who preempts, and which windows it gives: seconds by their share."""

    name: str
    windows: dict[float, float]
    delay: float


CLOUDS = (
    Cloud("AWS, 120 s", {120.0: 1.0}, _POLLED),
    Cloud("GCP, 30 s", {30.0: 1.0}, _HANGING),
    Cloud("Azure, 30 s, a fifth 10 s", {30.0: 0.8, 10.0: 0.2}, _POLLED),
    Cloud("without a notice", {}, 0.0),
)


def measure(scale: Scale) -> Iterator[Row]:
    times = scale.of(200, 5)
    for cloud in CLOUDS:
        found = list(_replay(cloud, times))
        ours, periodic = (_per_job(found, of) for of in (lambda lost: lost.ours, lambda lost: lost.periodic))
        what = f"training lost at a preemption, {cloud.name}"
        yield Row(
            f"{what}: spotguard",
            "s",
            ours,
            peer=statistics.median(periodic),
            peer_name="periodic checkpoints alone",
        )
        yield Row(f"{what}: periodic checkpoints alone", "s", periodic)
        if cloud.windows:
            lives = [lost for job in found for lost in job]
            yield Row(
                f"  not kept of what the window allows, {cloud.name}", "%", (missed(lives),), figure=1.0
            )


def missed(lives: list[Lost]) -> float:
    """Of the work that a notice's window allows to keep beyond periodic checkpoints, the percentage that was lost."""
    allowed = sum(max(0.0, lost.periodic - lost.allowed) for lost in lives)
    kept = sum(lost.periodic - lost.ours for lost in lives)
    return (1 - kept / allowed) * 100 if allowed else 0.0


def _replay(cloud: Cloud, times: int) -> Iterator[list[Lost]]:
    """The lives of each job."""
    for job in JOBS:
        dice = random.Random(f"{SEED} {cloud.name} {job.nbytes}")
        yield [live(job, PRIOR, _notice(cloud, dice), dice) for _ in range(times)]


def _notice(cloud: Cloud, dice: random.Random) -> Notice | None:
    if not cloud.windows:
        return None
    (window,) = dice.choices(list(cloud.windows), list(cloud.windows.values()))
    return Notice(window, max(_LEAST, _SHARE * window), dice.uniform(0.0, cloud.delay))


def _per_job(found: list[list[Lost]], of: Callable[[Lost], float]) -> tuple[float, ...]:
    return tuple(sum(map(of, lives)) / len(lives) for lives in found)
