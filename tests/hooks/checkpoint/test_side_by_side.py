"""Many small objects are got by several threads, and by the caller alone where no thread starts any more."""

from __future__ import annotations

import threading

import pytest

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.ipc import threads
from spotguard.hooks.ipc.threads import side_by_side
from spotguard.providers.errors import NotFoundError, UnavailableError
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore

KEYS = [f"key-{number}" for number in range(40)]


def refused(thread: threading.Thread) -> None:
    """As Python 3.12 says it from the end of the main thread on."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_the_answers_are_in_the_order_of_the_keys() -> None:
    """Though they come from several threads, which have to meet here before any goes on."""
    meeting = threading.Barrier(16)

    def get(key: str) -> bytes:
        if int(key.removeprefix("key-")) < 16:
            meeting.wait(100)
        return key.encode()

    assert side_by_side(get, KEYS) == [key.encode() for key in KEYS]


def test_a_call_inside_a_call_starts_no_threads() -> None:
    """A list of a thousand runs would else make 256 requests at once."""
    threads: set[int] = set()

    def inner(key: str) -> str:
        threads.add(threading.get_ident())
        return key

    assert side_by_side(lambda key: side_by_side(inner, KEYS), KEYS) == [KEYS] * len(KEYS)
    assert len(threads) <= 16
    meeting = threading.Barrier(2)
    assert side_by_side(lambda key: meeting.wait(100) >= 0, KEYS[:2]) == [
        True,
        True,
    ]  # and the next one does again


def test_without_new_threads_those_of_an_earlier_call_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at interpreter exit: a read there is as fast as any other."""
    meeting = threading.Barrier(4)
    side_by_side(lambda key: meeting.wait(100), KEYS[:4])
    monkeypatch.setattr(threading.Thread, "start", refused)
    assert sorted(side_by_side(lambda key: meeting.wait(100), KEYS[:4])) == [0, 1, 2, 3]


def test_without_new_threads_the_caller_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of three ranks is found whole at interpreter exit."""
    store = FakeStore()
    Save(world=3).write(store)
    monkeypatch.setattr(threads, "_helpers", threads.ThreadPool("none"))
    monkeypatch.setattr(threading.Thread, "start", refused)
    whole = find_whole(store, "run")
    assert whole is not None
    assert [manifest.rank for manifest in whole.manifests] == [0, 1, 2]


def test_the_first_failure_in_order_is_raised() -> None:
    """And nothing is asked for after it but what was under way."""
    asked = []

    def get(key: str) -> bytes:
        asked.append(key)
        if key == KEYS[0]:
            raise NotFoundError(key)
        raise UnavailableError(key)

    with pytest.raises(NotFoundError):
        side_by_side(get, KEYS)
    assert len(asked) <= 16
