"""How many puts at once: what did best is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotguard.hooks.commit.plan.throughput import UploadWidth

GIB = 2**30


def settled(rate: Callable[[int], float], most: int = 12, saves: int = 6) -> UploadWidth:
    width = UploadWidth(most)
    for _ in range(saves):
        width.learn(GIB, GIB / rate(width.count))
    return width


@pytest.mark.parametrize(
    ("rate", "count"),
    [
        (lambda width: 60e6 * width, 12),  # each connection adds its own
        (lambda width: min(60e6 * width, 300e6), 8),  # five fill the link
        (lambda width: 100e6, 4),  # one fills it
        (lambda width: 1e9 / width, 4),  # more are worse
    ],
)
def test_it_finds_what_the_link_wants(rate: Callable[[int], float], count: int) -> None:
    """By trying the neighbours, and staying with the narrower where nothing is gained."""
    assert settled(rate).count == count


def test_small_objects_on_a_slow_link() -> None:
    """A round of 32 MiB puts would take many seconds; on a fast link they stay large."""
    assert settled(lambda width: 12.5e6).object_bytes == 16 * 2**20
    assert settled(lambda width: 1e9).object_bytes == 32 * 2**20


def test_a_small_save_teaches_nothing() -> None:
    """It never filled the link."""
    width = UploadWidth(12)
    width.learn(2**20, 100.0)
    assert (width.count, width.object_bytes) == (8, 32 * 2**20)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_store_of_few_hands_stays_at_them(most: int) -> None:
    """A folder on a machine of two cores."""
    assert settled(lambda width: 1e9, most).count == most
