"""The process from which the lives of a training are forked does not outlive the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.frameworks import close_lives


@pytest.fixture(scope="session", autouse=True)
def _lives() -> Iterator[None]:
    yield
    close_lives()
