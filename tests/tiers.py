"""The tier of a test: fast (`make test`), slow (`make test-slow`), soak or bench.

Most of the slow tier is marked here, by what a test needs: a real server's program. The rest bears `pytest.mark.slow`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

#: What `make servers` installs, and the fast tier may start all the same: one Python process, as others of the suite.
FAST_PROGRAMS = frozenset({"moto_server"})
#: The fixture by which every other program is asked for.
PROGRAMS = "require_server"
#: Names of stores for which a test asks by `request.getfixturevalue`: those of fixtures, and the schemes of their URLs.
_STORES = frozenset({"azurite", "gcs", "swift", "az", "gs"})
#: Whoever has the first of these marks is in that tier; without any, in the fast one.
_TIERS = ("bench", "soak", "slow")
#: The seconds of one test that is not fast, of which several run beside each other on each core.
NET = 600
TIERS = ("fast", "slow", "soak", "bench")


def tier(item: pytest.Item) -> str:
    return next((name for name in _TIERS if item.get_closest_marker(name)), "fast")


def few_fast(rows: Iterable[Any], fast: int = 1) -> list[Any]:
    """Rows for `parametrize`: the first `fast` of them in the fast tier. The others go the same way, and are slow."""
    every = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [
        pytest.param(*row, marks=[pytest.mark.slow] * (number >= fast)) for number, row in enumerate(every)
    ]


def examples(fast: int) -> int:
    """The `max_examples` of a property: `fast` of them in the fast and the slow tier, which ask the same ones each time; four
    times as many in the soak, which looks for new ones.
    """
    from hypothesis import settings

    return fast if settings.default is None or settings.default.derandomize else 4 * fast


def with_nights(rows: Iterable[str], nights: Collection[str]) -> list[Any]:
    """The rows for `parametrize`, those of the nights in the soak: the slow tier takes minutes as it is."""
    return [pytest.param(row, marks=pytest.mark.soak) if row in nights else row for row in rows]


def needs_a_server(item: pytest.Item) -> bool:
    """Whether the test starts a program of `make servers`, as far as its fixtures and parameters say."""
    fixtures = getattr(item, "fixturenames", ())
    if PROGRAMS in fixtures:
        return True
    callspec: Any = getattr(item, "callspec", None)
    given = callspec.params.values() if callspec is not None and "request" in fixtures else ()
    return any(isinstance(value, str) and value in _STORES for value in given)


class Marking:
    """pytest's plug-in: it marks what is slow before `-m` chooses, and refuses a fast test's server."""

    def __init__(self) -> None:
        self._tier = "fast"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if needs_a_server(item):
                item.add_marker(pytest.mark.slow)
            if tier(item) != "fast" and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(NET))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._tier = tier(item)

    def check(self, program: str) -> None:
        """Fail the test that asks for this program, if its tier has none: wherever it is installed, not only elsewhere."""
        if self._tier == "fast" and program not in FAST_PROGRAMS:
            pytest.fail(
                f"{program} is a server, and the fast tier has none: mark the test `pytest.mark.slow`",
                pytrace=False,
            )
