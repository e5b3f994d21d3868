"""Each cloud's notices under everything that goes wrong, for twenty seconds by a fixed seed, and for ten minutes.

All clouds are tried beside each other. `SOAK_SECONDS` and `SOAK_SEED` choose another length and another story.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.soak.clouds import CLOUDS
from tests.soak.soak import Soak

pytestmark = pytest.mark.wholepath

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
SHORT = 20.0

#: Cloud, and whether its agent has many lives.
NAMES = [(cloud, lives) for cloud in CLOUDS for lives in (False, True)]
IDS = [f"{cloud}-{'many-lives' if lives else 'one-life'}" for cloud, lives in NAMES]


class Soaks:
    """All of them, begun when the first is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(len(NAMES), thread_name_prefix="soak")
        self._running: dict[tuple[str, bool], Future[None]] = {}
        self._soaks: list[Soak] = []

    def result(self, cloud: str, lives: bool, seconds: float, seed: int) -> None:
        """Wait for one of them."""
        if not self._running:
            for (name, several), id in zip(NAMES, IDS, strict=True):
                folder = self._folder / id
                folder.mkdir()
                soak = Soak(name, CLOUDS[name], folder, seed, lives=several)
                self._soaks.append(soak)
                self._running[name, several] = self._pool.submit(soak.run, seconds)
        self._running[cloud, lives].result()

    def close(self) -> None:
        for soak in self._soaks:
            soak.stop()
        self._pool.shutdown()
        for soak in self._soaks:
            print("\n".join(soak.story))


@pytest.fixture(scope="module")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soaks]:
    made = Soaks(tmp_path_factory.mktemp("soak"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def long_soaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soaks]:
    made = Soaks(tmp_path_factory.mktemp("soak"))
    yield made
    made.close()


@pytest.mark.parametrize(("cloud", "lives"), NAMES, ids=[f"{id}-seed-1" for id in IDS])
def test_twenty_seconds(soaks: Soaks, cloud: str, lives: bool) -> None:
    """No notice missed, none invented, the agent alive and as small as before, its requests within the limits."""
    soaks.result(cloud, lives, SHORT, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize(("cloud", "lives"), NAMES, ids=[f"{id}-seed-{SEED}" for id in IDS])
def test_ten_minutes(long_soaks: Soaks, cloud: str, lives: bool) -> None:
    """The same, thirty times as long."""
    long_soaks.result(cloud, lives, SECONDS, seed=SEED)
