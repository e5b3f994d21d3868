"""One thread asks for credentials, and those that wait for it share what came of it."""

from __future__ import annotations

import threading

import pytest

from spotguard.providers.stores.token import SharedAttempt

THREADS = 8


def test_threads_that_wait_share_a_failure() -> None:
    """A lost metadata service is asked once, not by one thread after another; a later call asks again."""
    attempt, entered = SharedAttempt(), threading.Semaphore(0)
    asked: list[str] = []
    failed: list[BaseException] = []

    def needed() -> bool:
        entered.release()
        return True

    def ask() -> None:
        for _ in range(THREADS + 1):  # each thread waits, and this one has looked twice
            assert entered.acquire(timeout=100)
        asked.append("")
        raise ConnectionError("nobody answers")

    def work() -> None:
        try:
            attempt.make(needed, ask)
        except ConnectionError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, name=f"asking-{number}") for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(failed) == THREADS
    assert len(asked) == 1
    attempt.make(lambda: True, lambda: asked.append("again"))
    assert asked[1:] == ["again"]


def test_an_attempt_that_is_not_needed_is_not_made() -> None:
    """Also after a failure that it did not wait for."""
    attempt = SharedAttempt()

    def ask() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        attempt.make(lambda: True, ask)
    attempt.make(lambda: False, ask)
