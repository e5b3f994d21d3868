"""What is learned of a link: nothing before the first put, the truth of a steady one, and the new truth of a changed one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.checkpoints.rate import Link, Rate

MIB = 2**20


def save(link: Link, rate: float, puts: int = 8, size: int = 16 * MIB, side_by_side: int = 4) -> None:
    """A save through a link of so many bytes a second, shared evenly by so many puts at once."""
    link.begin()
    seconds = size * side_by_side / rate
    for number in range(puts):
        begun = seconds * (number // side_by_side)
        link.put(size, begun, begun + seconds, side_by_side)


def known(link: Link) -> Rate:
    assert link.rate is not None
    return link.rate


def test_nothing_known_is_none() -> None:
    """Also when a save began, and for what tells nothing: no bytes, no time."""
    link = Link()
    assert link.rate is None
    link.begin()
    link.put(0, 1.0, 2.0)
    link.put(5, 1.0, 1.0)
    link.put(5, 2.0, 1.0)
    assert link.rate is None
    assert link.commit is None


@given(
    rate=st.floats(1e3, 1e11),
    saves=st.lists(
        st.lists(st.tuples(st.integers(1, 2**30), st.integers(1, 32)), min_size=1, max_size=20),
        min_size=1,
        max_size=5,
    ),
)
def test_a_steady_link_is_known_exactly(rate: float, saves: list[list[tuple[int, int]]]) -> None:
    """However its bytes are cut, and however many puts share it."""
    link = Link()
    for puts in saves:
        link.begin()
        for nbytes, in_flight in puts:
            link.put(nbytes, 0.0, nbytes * in_flight / rate, in_flight)
    assert known(link).expected == pytest.approx(rate, rel=1e-6)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 2**30), st.floats(1e4, 1e10)), min_size=1, max_size=20),
        min_size=1,
        max_size=20,
    )
)
def test_it_lies_among_what_was_seen(saves: list[list[tuple[int, float]]]) -> None:
    """And the bad day below it, the good one above."""
    link = Link()
    for puts in saves:
        link.begin()
        for nbytes, rate in puts:
            link.put(nbytes, 0.0, nbytes / rate)
    seen = [rate for _, rate in itertools.chain(*saves)]
    found = known(link)
    assert min(seen) * (1 - 1e-6) <= found.expected <= max(seen) * (1 + 1e-6)
    assert 0 < found.low < found.expected < found.high


@pytest.mark.parametrize(("before", "after"), [(1e8, 1e7), (1e7, 1e8), (1e8, 5e7)])
def test_the_first_objects_of_a_save_say_more_than_all_saves_before(before: float, after: float) -> None:
    """Eight of them, and the rate is within a fifth of what it has become."""
    link = Link()
    for _ in range(10):
        save(link, before)
    assert known(link).expected == pytest.approx(before)
    save(link, after, puts=8, size=64 * MIB, side_by_side=8)
    assert known(link).expected == pytest.approx(after, rel=0.2)


def test_one_odd_save_does_not_undo_the_others() -> None:
    """What is remembered is forgotten slowly, and what is old in the end."""
    link = Link()
    for _ in range(10):
        save(link, 1e8)
    save(link, 1e7)
    link.begin()
    assert known(link).expected > 2e7
    for _ in range(20):
        save(link, 1e7)
    link.begin()
    assert known(link).expected == pytest.approx(1e7, rel=0.05)


def test_a_link_that_changes_in_the_middle_is_followed() -> None:
    """Credits for bursts run out: after twenty more seconds little is left of them."""
    link = Link()
    save(link, 1e9, puts=64, size=64 * MIB)
    for _ in range(20):
        link.put(64 * MIB, 0.0, 64 * MIB / 5e7)
    assert known(link).expected == pytest.approx(5e7, rel=0.2)


def test_a_restless_link_is_said_to_be_one() -> None:
    """The steadier one has the better bad day, at one expected rate."""
    steady, restless = Link(), Link()
    save(steady, 1e8)
    for number in range(8):
        restless.put(16 * MIB, 0.0, 16 * MIB / (5e7 if number % 2 else 2e8))
    assert known(steady).low / known(steady).expected > 0.9
    assert known(restless).low / known(restless).expected < 0.7


def test_what_is_only_remembered_may_be_twice_that() -> None:
    """It was measured beside training, which stands still at a notice."""
    link = Link()
    save(link, 1e8)
    assert known(link).high < 1.1e8
    link.begin()
    assert known(link).expected == pytest.approx(1e8)
    assert known(link).high == pytest.approx(2e8)


def test_a_commit_costs_the_longest_of_the_last_few() -> None:
    """One bad one is forgotten after five."""
    link = Link()
    for seconds in (0.1, 3.0, 0.2):
        link.committed(seconds)
    assert link.commit == 3.0
    for _ in range(5):
        link.committed(0.1)
    assert link.commit == 0.1
