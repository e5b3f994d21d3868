"""From a notice being visible to the hook being told, in each scenario of what clouds do (tests/scenarios.md).

Where something hides the notice, it is visible when that ends: what is measured is how soon it is found then. Several
scenarios beside each other, each with several machines, whose notices come at their own places between two looks. Nothing
is measured while a machine is still being started, which takes a third of a second of a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from .rows import Row
from .scale import Scale
from .scenes import SCENES, Scene
from .watched import CLOUDS, Watched

#: Machines that are started at once, and scenarios that are played at once: with 8 machines each that is 2.5 GiB.
_STARTED_AT_ONCE = 4
_PLAYED_AT_ONCE = 6


def measure(scale: Scale) -> Iterator[Row]:
    count = scale.of(8, 1)
    few = tuple(next(scene for scene in SCENES if scene.provider == provider) for provider in CLOUDS)
    scenes = scale.of(SCENES, few)
    for first in range(0, len(scenes), _PLAYED_AT_ONCE):
        played = scenes[first : first + _PLAYED_AT_ONCE]
        folders = [scale.folder / str(first + place) for place in range(len(played))]
        for scene, told in zip(played, _play(played, folders, count), strict=True):
            milliseconds = tuple(seconds * 1e3 for seconds in told)
            yield Row(scene.row, "ms", milliseconds, figure=scene.figure, worst=True)


def _play(scenes: tuple[Scene, ...], folders: list[Path], count: int) -> list[list[float]]:
    """For each scene the seconds of each of its notices."""
    with ExitStack() as stack:
        stages = [
            _Stage(scene, Path(f"{folder}-{number}"), (number + (order + 0.5) / len(scenes)) / count)
            for order, (scene, folder) in enumerate(zip(scenes, folders, strict=True))
            for number in range(count)
        ]
        for stage in stages:
            stack.enter_context(stage.machine)
        with ThreadPoolExecutor(_STARTED_AT_ONCE) as pool:
            list(pool.map(_Stage.start, stages))
        with ThreadPoolExecutor(len(stages)) as pool:
            told = list(pool.map(_Stage.told, stages))
    return [told[first : first + count] for first in range(0, len(told), count)]


class _Stage:
    """One machine, and what happens to it.

    Args:
        place: of the notice between two looks, from 0 to 1.
    """

    def __init__(self, scene: Scene, folder: Path, place: float) -> None:
        cloud = CLOUDS[scene.provider]
        service = cloud.service() if scene.service is None else scene.service()
        self._scene = scene
        # Where a request is held any instant is as good as another, but not the same for all machines: they share cores.
        self._pause = place * ((cloud.interval if scene.interval is None else scene.interval) or 1.0)
        self._told: float | None = None
        self.machine = Watched(folder, scene.provider, "-m", "benchmarks.hearer", service=service)

    def start(self) -> None:
        """What has to happen before the agent sees cannot wait for the others."""
        self.machine.start()
        self.machine.ready(seeing=not self._scene.blind)
        if self._scene.blind:
            self._told = self._act()

    def told(self) -> float:
        """Seconds from the notice to the hook."""
        return self._act() if self._told is None else self._told

    def _act(self) -> float:
        visible = self._scene.act(self.machine, self._pause)
        return float(self.machine.line().split()[1]) - visible
