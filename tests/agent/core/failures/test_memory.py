"""The alarm before memory ends: for use that grows towards its limit, and for a machine that waits for memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spotguard.agent.core.failures.memory import EVERY, MemoryReading, MemoryWatch
from spotguard.agent.events import NoticeGone, NoticeSeen
from spotguard.providers.notice import NoticeKind, Severity

GIB = 1 << 30
LIMIT = 100 * GIB


def heard(
    use: Callable[[float], float], seconds: float, pressure: float = 0.0, watch: MemoryWatch | None = None
) -> Iterator[tuple[float, NoticeSeen | NoticeGone]]:
    """Yield what a watch says of a use, in shares of the limit by the time."""
    watch, now = watch or MemoryWatch(), 0.0
    while now <= seconds:
        used = int(use(now) * LIMIT)
        if (said := watch.hear(MemoryReading("this machine", used, LIMIT, pressure), now)) is not None:
            yield now, said
        now += EVERY


@pytest.mark.parametrize("pace", [0.001, 0.003, 0.01])
def test_growing_use_is_told_once_and_in_time(pace: float) -> None:
    """Shares of the limit a second; slower leaves time for the next background checkpoint."""
    ((at, said),) = heard(lambda now: min(1.0, 0.5 + pace * now), 0.5 / pace)
    assert isinstance(said, NoticeSeen)
    assert 10 <= 0.5 / pace - at <= 122
    assert (said.notice.kind, said.notice.severity) == (NoticeKind.MEMORY, Severity.ADVISORY)
    assert "100.0 GiB of this machine are in use, and at the pace of the last" in said.notice.detail


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda now: min(0.79, 0.1 + 0.02 * now), id="a dataset is loaded"),
        pytest.param(lambda now: 0.97, id="high and steady"),
        pytest.param(lambda now: 0.8 + 0.03 * (now % 20 < 10), id="a rise and fall of garbage"),
        pytest.param(lambda now: 0.8 + 0.00001 * now, id="a leak that takes hours"),
    ],
)
def test_memory_that_stays_below_its_limit_raises_no_alarm(use: Callable[[float], float]) -> None:
    assert list(heard(use, 900)) == []


def test_processes_that_wait_for_memory_are_an_alarm() -> None:
    ((at, said),) = heard(lambda now: 0.9, 60, pressure=0.3)
    assert at == 0
    assert isinstance(said, NoticeSeen)
    assert "all processes waited for memory for 30% of the last 10 s" in said.notice.detail
    assert list(heard(lambda now: 0.5, 60, pressure=0.3)) == []


def test_the_alarm_ends_once_memory_is_free_and_may_come_again() -> None:
    def use(now: float) -> float:
        return 0.5 if 150 <= now < 200 else 0.7 + 0.0025 * (now % 200)

    seen, gone, again = (said for _, said in heard(use, 390))
    assert isinstance(seen, NoticeSeen)
    assert gone == NoticeGone(seen.notice.id)
    assert isinstance(again, NoticeSeen)
    assert again.notice.id != seen.notice.id


def test_an_alarm_of_which_nothing_comes_ends_and_a_later_leak_is_told() -> None:
    """Memory that was loaded stays, below the limit; hours later it grows."""

    def use(now: float) -> float:
        return min(0.82, 0.5 + 0.005 * now) if now < 3600 else min(1.0, 0.82 + 0.001 * (now - 3600))

    said = [what for _, what in heard(use, 3780)]
    assert [type(each) for each in said] == [NoticeSeen, NoticeGone, NoticeSeen]


def test_another_limit_begins_anew() -> None:
    watch = MemoryWatch()
    for now in range(0, 40, 2):
        assert watch.hear(MemoryReading("this machine", int(0.75 * LIMIT), LIMIT), now) is None
    assert watch.hear(MemoryReading("this job's cgroup", int(0.95 * LIMIT), LIMIT), 40) is None
