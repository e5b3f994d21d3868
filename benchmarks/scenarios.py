"""From a notice being visible to the hook being told, in each scenario of what clouds do (docs/scenarios.md).

Where something hides the notice, it is visible when that ends: what is measured is how soon it is found then. Several
machines beside each other, each notice at its own place between two looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from .rows import Row
from .scale import Scale
from .scenes import SCENES, Scene
from .watched import CLOUDS, Watched

_AT_ONCE = 4


def measure(scale: Scale) -> Iterator[Row]:
    count = scale.of(8, 1)
    few = tuple(next(scene for scene in SCENES if scene.provider == provider) for provider in CLOUDS)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for place, scene in enumerate(scale.of(SCENES, few)):
            play = partial(_told, scene, scale.folder / str(place), count)
            told = tuple(seconds * 1e3 for seconds in pool.map(play, range(count)))
            yield Row(scene.row, "ms", told, figure=scene.figure, worst=True)


def _told(scene: Scene, folder: Path, count: int, number: int) -> float:
    """Seconds, for one notice of so many."""
    cloud = CLOUDS[scene.provider]
    pause = (number + 0.5) / count * (cloud.interval if scene.interval is None else scene.interval)
    service = cloud.service() if scene.service is None else scene.service()
    with Watched(
        Path(f"{folder}-{number}"), scene.provider, "-m", "benchmarks.hearer", service=service
    ) as watched:
        watched.start()
        watched.ready(seeing=not scene.blind)
        visible = scene.act(watched, pause)
        return float(watched.line().split()[1]) - visible
