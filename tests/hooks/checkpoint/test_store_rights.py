"""A job that could never save says so at register, and leaves nothing behind."""

from __future__ import annotations

import pytest

from spotguard.providers.errors import DeniedError
from tests.fakes.store import Fault
from tests.fakes.training import guarded, small
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "get", "list"])
def test_a_job_that_cannot_save_leaves_no_attempt(verb: str) -> None:
    """It would fence the run that can, and its number says that something was begun."""
    store, job = WatchedStore(), small()
    store.faults = [Fault(0, (verb,), error=lambda: DeniedError("no"))]
    with pytest.raises(DeniedError, match=r"^training was not started"), guarded(store, job.values):
        pass
    assert store.objects == {}
    # The optimizer is free again: the same process may register another store.
    with guarded(WatchedStore(), job.values) as guard:
        assert guard.restore() == 0


def test_a_job_that_cannot_delete_begins(caplog: pytest.LogCaptureFixture) -> None:
    """With a warning, and its attempt."""
    store = WatchedStore()
    store.faults = [Fault(0, ("delete",), error=lambda: DeniedError("no"))]
    with guarded(store, small().values) as guard:
        assert guard.restore() == 0
    assert "run/attempts/0001.json" in store.objects
    assert "pile up" in caplog.text
