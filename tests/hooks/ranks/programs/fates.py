"""What becomes of a process at one of its calls to the stores, those of blobs and the job's: it dies there, before or
behind that call's effect; or it stands still until the test lets it go on.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from spotguard.hooks.consensus.stores.connection import JobStore
from spotguard.hooks.consensus.stores.second import BesideStore
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request

T = TypeVar("T")

#: Seconds after which a process that nobody lets go on goes on.
PATIENCE = 100.0


class Fates:
    """Of one process in one job: calls are counted from `begin` on.

    Args:
        told: each a dict of `call` (a pattern of what is called), `number` (which of those, from 0), `after` (its effect),
            `what` ("die" or "hold"), `sign` (a path that appears when it is held; it goes on when that is gone), `every`
            (also those behind it are held, until the sign is gone).
    """

    def __init__(self, told: Sequence[dict[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._open = [dict(each) for each in told]
        #: Of all calls.
        self.count = -1

    def begin(self) -> None:
        with self._lock:
            self.count = 0

    def call(self, what: str, effect: Callable[[], T]) -> T:
        met = self._met(what)
        for each in met:
            if not each["after"]:
                self._meet(each)
        result = effect()
        for each in met:
            if each["after"]:
                self._meet(each)
        return result

    def _met(self, what: str) -> list[dict[str, Any]]:
        with self._lock:
            if self.count < 0:
                return []
            self.count += 1
            met = []
            for each in list(self._open):
                if re.search(each["call"], what):
                    each["number"] -= 1
                    if each["number"] < 0:
                        if not each["every"]:
                            self._open.remove(each)
                        met.append(each)
            return met

    def _meet(self, fate: dict[str, Any]) -> None:
        if fate["what"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        sign = Path(fate["sign"])
        with self._lock:  # it appears once: who comes when it is gone again was let go with all others
            if not fate.setdefault("met", False):
                fate["met"] = True
                sign.touch()
        nothing = threading.Event()
        assert any(not sign.exists() or nothing.wait(0.01) for _ in range(int(PATIENCE / 0.01)))


class FatedStore(CalledStore):
    """A store of blobs. Its calls are "put KEY", "get KEY", "delete KEY" …: the name of the verb, and of what."""

    def __init__(self, store: BlobStore, fates: Fates) -> None:
        super().__init__(store)
        self._fates = fates

    def through(self, request: Request, effect: Callable[[], T]) -> T:
        return self._fates.call(f"{request.verb} {request.key}", effect)


class FatedChannel:
    """A job's store. Its calls are "set KEY …", "add KEY", "claim KEY", "hear KEY …", without what all keys
    begin with. (Asking and waiting change nothing, and are done any number of times.)"""

    def __init__(self, store: JobStore, fates: Fates) -> None:
        self._store = store
        self._fates = fates

    def clone(self) -> FatedChannel:
        return FatedChannel(self._store.clone(), self._fates)

    def check(self, keys: list[str], /) -> bool:
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        self._store.wait(keys, timeout)

    def delete_key(self, key: str, /) -> bool:
        return self._store.delete_key(key)

    def add(self, key: str, value: int, /) -> int:
        return self._fates.call(f"add {_short(key)}", lambda: self._store.add(key, value))

    def compare_set(self, key: str, expected: str, value: str, /) -> bytes:
        return self._fates.call(f"claim {_short(key)}", lambda: self._store.compare_set(key, expected, value))

    def multi_get(self, keys: list[str], /) -> Sequence[bytes]:
        return self._fates.call(f"hear {_short(*keys)}", lambda: self._store.multi_get(keys))

    def multi_set(self, keys: list[str], values: list[str], /) -> None:
        self._fates.call(f"set {_short(*keys)}", lambda: self._store.multi_set(keys, values))


class FatedSecond(BesideStore):
    """The maker of the second store, whose calls have the same names: its numbers are the second log's."""

    def __init__(self, first: Any, world: int, fates: Fates) -> None:
        super().__init__(first, world)
        self._fates = fates

    def reach(self, place: str) -> JobStore | None:
        store = super().reach(place)
        return None if store is None else FatedChannel(store, self._fates)


def _short(*keys: str) -> str:
    return " ".join(key.split("/", 2)[-1] for key in keys)
