"""What the tests of alerts share: a receiver on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.webhook import Webhook, webhook


@pytest.fixture
def receiver() -> Iterator[Webhook]:
    with webhook() as receiver:
        yield receiver
