"""What the demo put into somebody's store: gone however it ended, or named."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from spotguard.demo.main import cleared
from spotguard.providers.errors import DeniedError, NotFoundError, SpotguardError
from tests.fakes.clock import Impatient
from tests.fakes.store import FakeStore, Fault


def filled() -> FakeStore:
    """With something of the demo's, and something of somebody's."""
    store = FakeStore("s3://bucket/prefix?region=eu-west-1")
    for key in ("demo-7/attempts/0001.json", "demo-7/probes/x", "mine/attempts/0001.json"):
        store.put(key, memoryview(b"{}"))
    store.calls.clear()
    return store


def ended(store: FakeStore, by: BaseException | None) -> list[str]:
    """What is said when the demo ends so. That end is what comes out."""
    said: list[str] = []
    end = pytest.raises(type(by)) if by is not None else nullcontext()
    with end as caught, cleared(store, "demo-7", Impatient(), said.append):
        if by is not None:
            raise by
    assert (caught.value if caught is not None else None) is by
    return said


@pytest.mark.parametrize("by", [None, SpotguardError("machine 1 failed"), KeyboardInterrupt()], ids=repr)
def test_nothing_of_the_demo_stays_however_it_ends(by: BaseException | None) -> None:
    store = filled()
    assert ended(store, by) == []
    assert list(store.objects) == ["mine/attempts/0001.json"]


@pytest.mark.parametrize("by", [None, SpotguardError("machine 1 failed")], ids=repr)
def test_an_object_that_cannot_be_removed_is_named(by: BaseException | None) -> None:
    """With place and reason; how the demo ended stays what it was."""
    store = filled()
    store.faults = [Fault(0, ("delete",), error=lambda: DeniedError("no right to delete"))]
    (line,) = ended(store, by)
    assert "may stay in s3://bucket/prefix/demo-7/?region=eu-west-1: " in line
    assert line.endswith("no right to delete")


def test_a_store_that_fails_for_now_is_asked_again() -> None:
    store = filled()
    store.faults = [Fault(at) for at in range(3)]
    assert ended(store, None) == []
    assert list(store.objects) == ["mine/attempts/0001.json"]


def test_a_store_that_does_not_answer_does_not_hold_the_end() -> None:
    store, clock, said = filled(), Impatient(), list[str]()
    store.faults = [Fault(at) for at in range(1000)]
    with cleared(store, "demo-7", clock, said.append):
        pass
    assert "may stay in s3://bucket/prefix/demo-7/" in said[0]
    assert clock.now <= 21.0


def test_a_bucket_that_is_not_there_holds_nothing() -> None:
    store = FakeStore()
    store.faults = [Fault(0, error=lambda: NotFoundError("no such bucket"))]
    assert ended(store, SpotguardError("no such bucket")) == []


def test_ctrl_c_while_it_is_cleared_ends_that_too_and_says_where_to_look() -> None:
    store, said = filled(), list[str]()
    store.faults = [Fault(1, error=KeyboardInterrupt)]
    with pytest.raises(KeyboardInterrupt), cleared(store, "demo-7", Impatient(), said.append):
        pass
    assert "may stay in s3://bucket/prefix/demo-7/" in said[0]
