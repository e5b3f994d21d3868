"""Heartbeats between the agents of a job's machines, over TCP: one question and one answer a second for each pair.

A machine that is taken, that has lost its network or whose kernel has died answers nothing more, and sends no end of its
connections either. Its silence is all that the others can see. An agent that has ended is no silence: its kernel refuses the
connection. Nothing listens before a job has ranks on several machines.

Every frame is authenticated by the secret of the agent that is asked. The ranks of the job exchange these secrets, which an
agent makes anew whenever it starts. So nobody else can have a machine taken for alive.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...providers.clock import Clock
from ..events import Event, MachineSeen
from .beats import EVERY, Beats

logger = logging.getLogger("spotguard.agent")

#: Bytes of a frame: its number, and the code that authenticates it.
_NUMBER, _CODE = 8, 16
_FRAME = _NUMBER + _CODE
#: Connections of other agents at once: a tree's node has 17, and a job of 64 machines 63; several jobs may share a machine.
_CALLERS = 512
#: Seconds after which a connection without an answer is made anew: TCP repeats lost bytes more and more rarely.
_ANEW = 5.0


def _code(secret: str, what: bytes, number: bytes) -> bytes:
    return blake2b(what + number, key=secret.encode(), digest_size=_CODE).digest()


@dataclass(slots=True)
class _Link:
    """The connection to another machine's agent."""

    address: tuple[str, int]
    secret: str
    beats: Beats
    sock: socket.socket | None = None
    made_at: float = 0.0
    number: int = 0
    rest: bytearray = field(default_factory=bytearray)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock = None
        self.rest.clear()


class Heartbeats:
    """The heartbeats of one agent: it answers those of others, and sends its own. Its thread starts with the first use.

    Args:
        post: takes the events.
        clock: the time.
        every: seconds between two heartbeats.
    """

    def __init__(self, post: Callable[[Event], None], clock: Clock, every: float = EVERY) -> None:
        self._post = post
        self._clock = clock
        self._every = every
        self._secret = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._callers: dict[socket.socket, bytearray] = {}
        self._links: dict[str, _Link] = {}
        #: By user and run: the machines to watch. Any thread replaces it as a whole.
        self._wanted: Mapping[Any, Mapping[str, str]] = {}
        self._lock = threading.Lock()
        self._wake, self._waker = socket.socketpair()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ticked_at = 0.0

    # --- any thread ---

    def open(self) -> str:
        """Listen, if that has not begun, and return "PORT SECRET"; "" if this machine lets nobody listen."""
        with self._lock:
            if self._closed:
                return ""
            if self._listener is None:
                try:
                    self._listener = socket.create_server(("", 0), backlog=_CALLERS)
                except OSError as error:
                    logger.warning("no heartbeats with other machines: %s", error.strerror)
                    return ""
                self._listener.setblocking(False)
                self._begin()
            return f"{self._listener.getsockname()[1]} {self._secret}"

    def watch(self, run: tuple[int, str], machines: Mapping[str, str]) -> None:
        """Watch these machines for a run, instead of those before.

        Args:
            run: the user and the run.
            machines: by "ADDRESS PORT SECRET", the names. Empty: the run is over.
        """
        with self._lock:
            if self._closed:
                return
            others = {each: theirs for each, theirs in self._wanted.items() if each != run}
            self._wanted = {**others, run: dict(machines)} if machines else others
            self._begin()

    def close(self) -> None:
        """End all connections, which the other agents see."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waker.send(b"x")
        if self._thread is not None:
            self._thread.join()
        for sock in (self._wake, self._waker, self._listener):
            if sock is not None:
                sock.close()
        self._selector.close()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spotguard-heartbeats", daemon=True)
            self._ticked_at = self._clock.monotonic()
            self._selector.register(self._wake, selectors.EVENT_READ, None)
            self._thread.start()
        self._waker.send(b"x")

    # --- the thread ---

    def _run(self) -> None:
        listens = False
        while not self._closed:
            if not listens and self._listener is not None:
                listens = True
                self._selector.register(self._listener, selectors.EVENT_READ, None)
            try:
                for key, _ in self._selector.select(self._every if self._links or self._wanted else None):
                    self._ready(key)
                self._tick()
            except Exception:  # a bug here must cost heartbeats only
                logger.exception("an error of the heartbeats")
                self._clock.wait(threading.Event(), self._every)
        for link in self._links.values():
            link.close()
        for caller in self._callers:
            caller.close()

    def _ready(self, key: selectors.SelectorKey) -> None:
        sock = key.fileobj
        if sock is self._wake:
            self._wake.recv(64)
        elif sock is self._listener:
            self._accept()
        elif isinstance(key.data, _Link):
            self._answered(key.data)
        elif isinstance(sock, socket.socket) and sock in self._callers:  # else hung up on in this round
            self._asked(sock)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        if len(self._callers) >= _CALLERS:  # the oldest one may be a stranger, who says nothing
            self._hang_up(next(iter(self._callers)))
        self._callers[sock] = bytearray()
        self._selector.register(sock, selectors.EVENT_READ, None)

    def _asked(self, sock: socket.socket) -> None:
        """Answer the questions of another agent. Who does not know the secret is hung up on."""
        rest = self._callers[sock]
        try:
            data = sock.recv(4 * _FRAME)
            rest += data
            while len(rest) >= _FRAME:
                number, code = bytes(rest[:_NUMBER]), bytes(rest[_NUMBER:_FRAME])
                del rest[:_FRAME]
                if not secrets.compare_digest(code, _code(self._secret, b"ask", number)):
                    data = b""
                    break
                sock.send(number + _code(self._secret, b"answer", number))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(sock)

    def _hang_up(self, sock: socket.socket) -> None:
        del self._callers[sock]
        self._selector.unregister(sock)
        sock.close()

    def _answered(self, link: _Link) -> None:
        assert link.sock is not None
        try:
            data = link.sock.recv(4 * _FRAME)
        except BlockingIOError:
            return
        except (ConnectionError, TimeoutError) as error:
            # No route and no answer are the silence of a machine. A refusal is that of a kernel that lives.
            self._drop(link, ended=isinstance(error, ConnectionError))
            return
        except OSError:
            self._drop(link, ended=False)
            return
        if not data:
            self._drop(link, ended=True)
            return
        link.rest += data
        while len(link.rest) >= _FRAME:
            number, code = bytes(link.rest[:_NUMBER]), bytes(link.rest[_NUMBER:_FRAME])
            del link.rest[:_FRAME]
            if secrets.compare_digest(code, _code(link.secret, b"answer", number)):
                self._tell(link.beats.heard(self._clock.monotonic()))

    def _drop(self, link: _Link, *, ended: bool) -> None:
        if link.sock is not None:
            self._selector.unregister(link.sock)
        link.close()
        if ended:
            self._tell(link.beats.ended())

    def _tick(self) -> None:
        now = self._clock.monotonic()
        gap = now - self._ticked_at
        due = gap >= self._every
        if due or self._wanted_changed():
            self._follow(now)
        if not due:
            return
        self._ticked_at = now
        for link in self._links.values():
            if gap > 2 * self._every:  # this machine, or this agent, was stopped meanwhile
                link.beats.missed(gap)
            self._ask(link, now)
            self._tell(link.beats.look(now))

    def _wanted_changed(self) -> bool:
        return {key for machines in self._wanted.values() for key in machines} != self._links.keys()

    def _follow(self, now: float) -> None:
        """Have one link for each machine that a run wants to be watched."""
        runs: dict[str, set[Any]] = {}
        names: dict[str, str] = {}
        for run, machines in self._wanted.items():
            for key, name in machines.items():
                runs.setdefault(key, set()).add(run)
                names[key] = name
        for key in [*self._links]:
            if key not in runs:
                link = self._links.pop(key)
                self._drop(link, ended=False)
        for key, of in runs.items():
            if key not in self._links:
                address, port, secret = key.split(" ")
                self._links[key] = _Link((address, int(port)), secret, Beats(names[key], self._every))
            self._links[key].beats.runs = frozenset(of)

    def _ask(self, link: _Link, now: float) -> None:
        if link.sock is not None and link.beats.quiet(now) > _ANEW and now - link.made_at > _ANEW:
            self._drop(link, ended=False)
        if link.sock is None:
            if link.beats.gone:
                return
            link.sock, link.made_at = socket.socket(socket.AF_INET, socket.SOCK_STREAM), now
            link.sock.setblocking(False)
            link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sock.connect_ex(link.address)
            self._selector.register(link.sock, selectors.EVENT_READ, link)
        link.number += 1
        number = link.number.to_bytes(_NUMBER, "big")
        with contextlib.suppress(OSError):  # not connected yet; or lost, which the next read reports
            link.sock.send(number + _code(link.secret, b"ask", number))

    def _tell(self, seen: MachineSeen | None) -> None:
        if seen is not None:
            self._post(seen)
