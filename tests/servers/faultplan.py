"""Faults, and which request meets which: that follows from the seed and the order of the requests alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import responses
from typing import Literal

Where = Literal["request", "response"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came by, and what it met: the name of a fault, or nothing."""

    method: str
    path: str
    fault: str = ""
    #: Names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong, for a share of the requests that it concerns.

    Args:
        kind: "answer" in the store's place; "reset" the connection; "stall" until `go_on`; "truncate" the answer, by
            an orderly end; "corrupt" one bit.
        where: in the request's body, or the response.
        after: so many bytes of that body pass first. A reset or a stall of the response after 0 keeps all of it back:
            the store has acted, and the client does not hear.
        share: of the concerned requests; 1 is each of them.
        times: how often at most.
        matching: which requests it concerns.
    """

    kind: Literal["answer", "reset", "stall", "truncate", "corrupt"]
    where: Where = "request"
    after: int = 0
    share: float = 1.0
    times: float = float("inf")
    matching: Callable[[Asked], bool] = lambda asked: True
    status: int = 503
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def answer(self, connection: str) -> bytes:
        """What is said in the store's place."""
        headers = {**self.headers, "Content-Length": str(len(self.body)), "Connection": connection}
        lines = [f"HTTP/1.1 {self.status} {responses[self.status]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + self.body


class Plan:
    """The faults of now, and the requests so far. Any thread may call."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._seen: list[Asked] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(replace(fault))  # it counts down its own `times`

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    @property
    def seen(self) -> tuple[Asked, ...]:
        with self._lock:
            return tuple(self._seen)

    def decide(self, asked: Asked) -> Fault | None:
        """What this request meets: the first fault that concerns it and wants it."""
        with self._lock:
            for fault in self._faults:
                if fault.times < 1 or not fault.matching(asked) or self._dice.random() >= fault.share:
                    continue
                fault.times -= 1
                self._seen.append(replace(asked, fault=fault.kind))
                return fault
            self._seen.append(asked)
        return None
