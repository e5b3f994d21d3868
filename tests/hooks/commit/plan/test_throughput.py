"""What is learned of a link: nothing before the first bytes, the truth of a steady one, the new truth of a changed one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.commit.plan.throughput import LinkRate, StoreLink

MIB = 2**20


class Played:
    """A link and its clock."""

    def __init__(self) -> None:
        self.link = StoreLink()
        self.now = 1000.0
        self.gone = 0

    def begin(self) -> None:
        self.now += 60.0
        self.gone = 0
        self.link.begin(self.now)

    def send(self, rate: float, seconds: float, every: float = 0.1) -> None:
        """So many bytes a second, for so long, told of so often."""
        begun, before = self.now, self.gone
        for number in range(1, max(1, round(seconds / every)) + 1):
            self.now = begun + number * every
            self.gone = before + round(rate * number * every)
            self.link.sent(self.gone, self.now)

    def save(self, rate: float, seconds: float = 10.0) -> None:
        self.begin()
        self.send(rate, seconds)
        self.link.end(self.now)

    @property
    def rate(self) -> LinkRate:
        found = self.link.rate(self.now)
        assert found is not None
        return found


def test_nothing_known_is_none() -> None:
    """Also when a save began, and for what tells nothing: no bytes, no time, no save."""
    link = StoreLink()
    assert link.rate(0.0) is None
    link.sent(5, 1.0)
    link.begin(2.0)
    link.sent(5, 2.0)
    link.end(2.0)
    link.begin(3.0)
    link.sent(0, 9.0)
    assert link.rate(20.0) is None
    assert link.commit is None


@given(
    rate=st.floats(1e4, 1e11),
    saves=st.lists(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=20), min_size=1, max_size=5),
)
def test_a_steady_link_is_known_exactly(rate: float, saves: list[list[float]]) -> None:
    """However often it is looked at, and however short a save was."""
    link = StoreLink()
    now = 0.0
    for waits in saves:
        now += 100.0
        begun = now
        link.begin(begun)
        for wait in waits:
            now += wait
            link.sent(round(rate * (now - begun)), now)
        link.end(now)
    found = link.rate(now)
    assert found is not None
    assert found.expected == pytest.approx(rate, rel=0.02)  # of 100 bytes, one is rounded


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.5, 20.0), st.floats(1e4, 1e10)), min_size=1, max_size=20),
        min_size=1,
        max_size=20,
    )
)
def test_it_lies_among_what_was_seen(saves: list[list[tuple[float, float]]]) -> None:
    """And the bad day below it, the good one above."""
    played = Played()
    for stretches in saves:
        played.begin()
        for seconds, rate in stretches:
            played.send(rate, seconds, every=seconds)
        played.link.end(played.now)
    seen = [rate for _, rate in itertools.chain(*saves)]
    assert min(seen) * 0.999 <= played.rate.expected <= max(seen) * 1.001
    assert 0 < played.rate.low < played.rate.expected < played.rate.high


@pytest.mark.parametrize(("before", "after"), [(1e8, 1e7), (1e7, 1e8), (1e8, 5e7)])
def test_ten_seconds_of_a_save_say_more_than_all_saves_before(before: float, after: float) -> None:
    """By then the rate is near what it has become; after two it is half of the way there."""
    played = Played()
    for _ in range(10):
        played.save(before)
    played.begin()
    assert played.rate.expected == pytest.approx(before)
    played.send(after, 2.0)
    assert abs(played.rate.expected - after) < abs(before - after) / 2
    played.send(after, 8.0)
    assert played.rate.expected == pytest.approx(after, rel=0.25)


def test_one_odd_save_does_not_undo_the_others() -> None:
    """What is remembered is forgotten slowly, and what is old in the end."""
    played = Played()
    for _ in range(10):
        played.save(1e8)
    played.save(1e7)
    played.begin()
    assert played.rate.expected > 5e7
    lately = Played()
    lately.save(1e7)
    for _ in range(10):
        lately.save(1e8)
    lately.begin()
    assert lately.rate.expected > 1.1 * played.rate.expected
    for _ in range(20):
        played.save(1e7)
    played.begin()
    assert played.rate.expected == pytest.approx(1e7, rel=0.05)


def test_a_link_that_changes_in_the_middle_is_followed() -> None:
    """Credits for bursts run out: after twenty more seconds little is left of them."""
    played = Played()
    played.begin()
    played.send(1e9, 30.0)
    played.send(5e7, 20.0)
    assert played.rate.expected == pytest.approx(5e7, rel=0.5)
    played.send(5e7, 10.0)
    assert played.rate.expected == pytest.approx(5e7, rel=0.1)


def test_a_link_that_stands_still_falls_though_nothing_is_told() -> None:
    """And what is over stands still without meaning anything."""
    played = Played()
    played.begin()
    played.send(1e8, 5.0)
    before = played.rate.expected
    played.send(1e8, 0.4)
    assert played.rate.expected == before
    played.now += 0.6
    assert 0.82 * before < played.rate.expected < 0.9 * before  # what was sent of the open stretch counts
    played.now += 9.0
    assert played.rate.expected < before / 3
    played.link.sent(played.gone, played.now)
    assert played.rate.expected < before / 3
    played.link.end(played.now)
    after = played.rate.expected
    played.now += 1000.0
    assert played.rate.expected == after


def test_an_object_that_is_sent_again_is_time_without_bytes() -> None:
    """The bytes of the first try count once."""
    played = Played()
    played.begin()
    played.send(1e8, 5.0)
    before = played.rate.expected
    played.now += 1.0
    played.link.sent(played.gone - 64 * MIB, played.now)
    assert 0.7 * before < played.rate.expected < before
    played.link.sent(played.gone, played.now)
    played.send(1e8, 0.5)
    assert 6e7 < played.rate.expected < 1e8


def test_a_restless_link_is_said_to_be_one() -> None:
    steady, restless = Played(), Played()
    for played in (steady, restless):
        played.begin()
    for number in range(8):
        steady.send(1e8, 1.0)
        restless.send(5e7 if number % 2 else 2e8, 1.0)
    assert steady.rate.low / steady.rate.expected > 0.9
    assert restless.rate.low / restless.rate.expected < 0.7


def test_a_remembered_rate_may_be_doubled() -> None:
    """It was measured beside training, which stands still at a notice; of a save that goes on it is what it does."""
    played = Played()
    played.save(1e8)
    assert played.rate.expected == pytest.approx(1e8)
    assert played.rate.high == pytest.approx(2e8)
    played.begin()
    assert played.rate.high == pytest.approx(2e8)
    played.send(1e8, 1.0)
    assert played.rate.high < 1.1e8


def test_a_store_that_stood_still_may_be_back() -> None:
    """What is expected says what comes first; what it once did says whether anything is tried."""
    played = Played()
    played.save(1e8)
    for _ in range(10):
        played.save(1e3)
    assert played.rate.expected < 1e5
    assert played.rate.high == pytest.approx(2e8)
    for _ in range(16):
        played.save(1e3)
    assert played.rate.high == pytest.approx(2e3)


def test_seconds_with_nothing_to_send_are_not_the_link_s() -> None:
    """Neither behind bytes nor before the first."""
    link = StoreLink()
    link.begin(0.0)
    link.paused(4.0)
    link.sent(100, 5.0)
    link.sent(120, 5.2)
    link.paused(30.0)
    link.sent(200, 36.0)
    assert (known := link.rate(36.0)) is not None
    assert known.expected == pytest.approx(100)
    assert (known := link.rate(46.0)) is not None
    assert known.expected < 20  # nobody said that there was nothing
    link.paused(10.0)
    assert (known := link.rate(46.0)) is not None
    assert known.expected == pytest.approx(100)
    link.end(46.0)
    link.paused(1.0)  # nobody sends
    assert link.rate(47.0) == link.rate(46.0)


def test_a_commit_costs_what_most_of_the_last_few_did() -> None:
    """One bad one decides nothing beside two others; with a single other one it may come again."""
    link = StoreLink()
    assert (link.commit, link.commit_at_best) == (None, None)
    said = []
    for seconds in (0.1, 3.0, 0.2, 0.3, 0.4):
        link.committed(seconds)
        said.append((link.commit, link.commit_at_best))
    assert said == [(0.1, 0.1), (3.0, 0.1), (0.2, 0.1), (0.3, 0.1), (0.3, 0.1)]
    for _ in range(5):
        link.committed(3.0)
    assert (link.commit, link.commit_at_best) == (3.0, 3.0)
