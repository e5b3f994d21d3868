"""One gang for all tests of a worker: what costs seconds, torch's import, is paid once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hooks.ranks.gang import Gang


@pytest.fixture(scope="session")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    gang = Gang(tmp_path_factory.mktemp("gang"))
    yield gang
    gang.close()
