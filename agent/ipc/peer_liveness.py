"""The heartbeats of another machine: their frames, and from which moment on it counts as silent. Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ..events import MachineSeen

#: Seconds between two heartbeats, and how many must be missing before a machine counts as silent.
EVERY, MISSING = 1.0, 3
#: Bytes of a frame: its number, and the code that authenticates it.
NUMBER, _CODE = 8, 16
FRAME = NUMBER + _CODE


def code_of(secret: str, what: bytes, number: bytes) -> bytes:
    """Return the code that authenticates a question or an answer."""
    return blake2b(what + number, key=secret.encode(), digest_size=_CODE).digest()


def frames(rest: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take the complete frames out of what was received; yield the number and the code of each."""
    while len(rest) >= FRAME:
        number, code = bytes(rest[:NUMBER]), bytes(rest[NUMBER:FRAME])
        del rest[:FRAME]
        yield number, code


def place_of(text: str) -> tuple[int, str] | None:
    """Return the port and the secret of "PORT SECRET", at which an agent answers; None if it is no such place.

    Any process may have written it.
    """
    port, _, secret = text.partition(" ")
    numbered = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not (numbered and secret.isascii() and secret.isalnum() and len(secret) <= 64):
        return None
    return int(port), secret


@dataclass(slots=True)
class PeerLiveness:
    """The answers of one machine's agent. Each method returns the news, and None if there is none."""

    name: str
    every: float = EVERY
    #: The runs that have ranks there, each by its user and name.
    runs: frozenset[Any] = frozenset()
    heard_at: float | None = None
    silent: bool = False
    #: Its agent has ended, so its silence means nothing. It may be back.
    gone: bool = False

    def heard(self, now: float) -> MachineSeen | None:
        news = self.heard_at is None or self.silent or self.gone
        self.heard_at = now
        if news:
            self.silent = self.gone = False
            return MachineSeen(self.runs, self.name)
        return None

    def follow(self, runs: frozenset[Any]) -> MachineSeen | None:
        """Take in which runs have ranks there. A run that is new learns how the machine is."""
        new, self.runs = runs - self.runs, runs
        if not new or self.heard_at is None or self.gone:
            return None
        return MachineSeen(new, self.name, self.heard_at if self.silent else None)

    def look(self, now: float) -> MachineSeen | None:
        """Return the news that the machine is silent. A machine that was never heard is not: a firewall may be between."""
        if self.heard_at is None or self.silent or self.gone or self.quiet(now) < MISSING * self.every:
            return None
        self.silent = True
        return MachineSeen(self.runs, self.name, silent_since=self.heard_at)

    def ended(self) -> MachineSeen | None:
        """Take in that its kernel refuses the connection. A silent machine that comes back so has lost its ranks."""
        if self.silent or self.gone:
            return None
        self.gone = True
        return None if self.heard_at is None else MachineSeen(self.runs, self.name, ended=True)

    def missed(self, seconds: float, now: float) -> None:
        """Take in that this agent was stopped for so long, and heard nobody."""
        if self.heard_at is not None:
            self.heard_at = min(now, self.heard_at + seconds)

    def quiet(self, now: float) -> float:
        """Return the seconds since its last answer; 0 if it was never heard."""
        return 0.0 if self.heard_at is None else now - self.heard_at
