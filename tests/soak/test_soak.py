"""Each cloud's notices under everything that goes wrong, for twenty seconds by a fixed seed, and for ten minutes.

All clouds are tried beside each other, each with one agent that lives all the time, and with one that lives often.
`SOAK_SECONDS` and `SOAK_SEED` choose another length and another story.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.soak.clouds import CLOUDS
from tests.soak.soak import Soak

pytestmark = pytest.mark.wholepath

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SOAK_SEED", "1"))


def soak(folder: Path, seconds: float, seed: int) -> None:
    """Raises what went wrong, with the whole story of each cloud that it went wrong on."""
    soaks = []
    for name, cloud in CLOUDS.items():
        for lives in (False, True):
            own = folder / f"{name}-{'many' if lives else 'one'}"
            own.mkdir()
            soaks.append(Soak(name, cloud, own, seed, lives=lives))
    with ThreadPoolExecutor(len(soaks), thread_name_prefix="soak") as pool:
        running = [pool.submit(each.run, seconds) for each in soaks]
        try:
            wrong = [error for each in running if (error := each.exception()) is not None]
        finally:
            for each in soaks:
                each.stop()
    for each in soaks:
        print("\n".join(each.story))
    if wrong:
        raise BaseExceptionGroup(f"{len(wrong)} of {len(soaks)} soaks", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1], ids="seed-{}".format)
def test_twenty_seconds(tmp_path: Path, seed: int) -> None:
    """No notice missed, none invented, the agent alive and as small as before, its requests within the limits."""
    soak(tmp_path, 20.0, seed)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("seed", [SEED], ids="seed-{}".format)
def test_ten_minutes(tmp_path: Path, seed: int) -> None:
    """The same, thirty times as long."""
    soak(tmp_path, SECONDS, seed)
