"""What several files tell stories with: a launcher with its ranks, and the signals that end something."""

from __future__ import annotations

import signal
from typing import Any

from tests.fakes.story import Story


def only(signals: list[int]) -> list[int]:
    """Without the SIGCONT that wakes a stopped command at a notice."""
    return [s for s in signals if s != signal.SIGCONT]


def torchrun(*, ranks: int = 2, **policy: Any) -> tuple[Story, list[int]]:
    """A launcher with its workers, which have pids of their own."""
    story = Story(**policy)
    return story, [story.opens(501 + rank, rank=rank, world=2 * ranks) for rank in range(ranks)]


def terms(story: Story) -> list[int]:
    return [signum for signum in story.signals if signum == signal.SIGTERM]
