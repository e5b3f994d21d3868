"""The job's store, as much of it as is used, and the doing of one operation with it. `torch.distributed.Store` is one.

Its own timeouts are not relied on: with a host that stands still (SIGSTOP) none fires. So whoever calls here is a
thread that can be done without.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from ...providers.errors import SpotguardError
from .operations import Add, Answer, Claim, Drop, Get, Has, Hear, Operation, Set, Wait


class Silent(SpotguardError):
    """The job's store does not answer: the process that hosts it is gone, or stands still."""


class Store(Protocol):
    """The whole of the job's store. Values are text where they are given and bytes where they are got."""

    def add(self, key: str, value: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def clone(self) -> Store: ...
    def compare_set(self, key: str, expected: str, value: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> Sequence[bytes]: ...
    def multi_set(self, keys: list[str], values: list[str], /) -> None: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


def connect(store: Store) -> Store:
    """A connection for one more thread: one that waits keeps all others from the connection that it waits on. (It may
    take seconds: c10d asks for the host's name.)

    Raises:
        Silent: the store is gone.
    """
    try:
        return store.clone()
    except (AttributeError, NotImplementedError):
        return store  # in this process's memory or in a file: there is no connection
    except RuntimeError as error:
        raise Silent(f"the job's store does not answer: {_line(error)}") from error


def do(store: Store, operation: Operation) -> Answer:
    """All but waiting and hearing, which take time that somebody must measure.

    Raises:
        Silent: the store is gone. One that stands still gives no answer at all.
    """
    try:
        match operation:
            case Set(values=values):
                store.multi_set([key for key, _ in values], [value for _, value in values])
                return None
            case Add(key=key, amount=amount):
                return store.add(key, amount)
            case Claim(key=key, value=value):
                return store.compare_set(key, "", value)
            case Has(keys=keys):
                return store.check(list(keys))
            case Get(keys=keys):
                return tuple(store.multi_get(list(keys)))
            case Drop(keys=keys):
                _drop(store, keys)
                return None
            case Wait() | Hear():
                raise TypeError(f"{operation} is not done here")
    except RuntimeError as error:  # the root of all that c10d raises
        raise Silent(f"the job's store does not answer: {_line(error)}") from error


def wait(store: Store, keys: Sequence[str], seconds: float) -> bool:
    """Wait for all keys; whether they are there. (That it took too long, and that the store is gone, are one error in
    some stores: so it is asked once more. For a wait that may well be in vain this is not: c10d writes two warnings to
    standard error for each.)

    Raises:
        Silent: the store is gone.
    """
    try:
        store.wait(list(keys), timedelta(seconds=seconds))
        return True
    except RuntimeError:
        return bool(do(store, Has(tuple(keys))))


def _drop(store: Store, keys: Sequence[str]) -> None:
    try:
        for key in keys:
            store.delete_key(key)
    except RuntimeError:
        pass  # a store that keeps everything; and one that is gone says so when it is asked for something


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
