"""Which peers the agent takes in, by their first message and the others'."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from spotguard.agent.ipc.admission import UserAllowances, refusal
from spotguard.agent.ipc.connection import Limits
from spotguard.hooks.ipc.protocol import Register
from spotguard.providers.clock import SystemClock

RUN = Register(1, "run", "train.py", store="s3://bucket/run")


def allowances() -> UserAllowances:
    return UserAllowances(Limits(user_rate=0, user_burst=1, per_user=1), SystemClock())


@dataclass
class Visitor:
    """A connection, as far as the rules look at it. Its process is this one, which lives."""

    uid: int
    pid: int
    register: Register | None
    pidfd: int

    def follow(self) -> bool:
        return True


@contextmanager
def answered(newcomer: int, register: Register) -> Iterator[str]:
    """The answer to a process of this user, where user 1000 saves `RUN` already."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        known = Visitor(1000, os.getpid(), RUN, pidfd)
        yield refusal(cast(Any, Visitor(newcomer, 2, None, -1)), register, [cast(Any, known)], allowances())
    finally:
        os.close(pidfd)


@pytest.mark.parametrize(
    ("uid", "register"),
    [
        (1001, RUN),
        (1000, Register(2, "another", "train.py", store=RUN.store)),
        (1000, Register(2, "run", "train.py", store="s3://bucket/another")),
        (1000, Register(2, "run", "train.py", store=RUN.store, rank=1)),
    ],
)
def test_another_user_run_store_or_rank_is_let_in(uid: int, register: Register) -> None:
    with answered(uid, register) as answer:
        assert answer == ""


def test_a_second_process_that_saves_the_same_is_refused() -> None:
    with answered(1000, RUN) as answer:
        assert answer.startswith(f"run id 'run' is being saved by pid {os.getpid()} already")


def test_a_process_that_comes_back_has_room_when_its_users_new_connections_are_too_many() -> None:
    """And not for ever: one that comes back all the time is a flood as well."""
    left = allowances()
    while left.admit(1, returns=False):
        pass
    assert left.admit(2, returns=False)
    assert [left.admit(1, returns=True) for _ in range(3)] == [True, False, False]
