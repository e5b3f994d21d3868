"""Heartbeats between the agents of a job's machines, over TCP: one question and one answer a second for each pair.

A machine that is taken, that has lost its network or whose kernel has died answers nothing more, and sends no end of its
connections either. Its silence is all that the others can see. An agent that has ended is no silence: its kernel refuses the
connection. Nothing listens before a job has ranks on several machines.

Every frame is authenticated by the secret that the agent that is asked has for a run, and answers a question's random number. The
ranks of the run exchange these secrets. So only who belongs to a job there can have a machine taken for alive. To an agent that
starts again, the ranks bring the port and the secret that the other machines have.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...providers.clock import Clock
from ...providers.text import NAME, clip
from ..events import Event, MachineSeen
from .peer_liveness import EVERY, FRAME, NUMBER, PeerLiveness, code_of, frames, place_of

logger = logging.getLogger("spotguard.agent")

#: Connections of other agents at once: a tree's node has 17, and a job of 64 machines 63; several jobs may share a machine.
_CALLERS = 512
#: Seconds in which a caller has to ask its first question. The most links of an agent, each a descriptor; one user has half of them.
#: Seconds between two looks whether an agent that has ended is back.
_HELLO, _LINKS, _BACK = 5.0, 256, 30.0
#: Runs that have a secret at once, and ended ones whose secret is kept: a rank may register while the last one leaves.
_RUNS, _ENDED = 1024, 64
#: Ports below are for servers of this machine, and no process may have the agent listen there.
_FIRST_PORT = 1024
#: Questions whose answer still counts.
_OPEN = 5
#: Seconds after which a connection without an answer is made anew: TCP repeats lost bytes more and more rarely.
_ANEW = 5.0


def _listen(port: int) -> socket.socket:
    """Return a listener at this port, or at a free one if another program has it."""
    try:
        listener = socket.create_server(("", port), backlog=_CALLERS)
    except OSError as error:
        if not port:
            raise
        logger.warning("this agent cannot listen at port %d again: %s", port, error.strerror)
        listener = socket.create_server(("", 0), backlog=_CALLERS)
    listener.setblocking(False)
    return listener


@dataclass(slots=True)
class _Link:
    """The connection to another machine's agent."""

    address: tuple[str, int]
    secret: str
    liveness: PeerLiveness
    sock: socket.socket | None = None
    made_at: float = 0.0
    #: This connection has brought an answer.
    answered: bool = False
    asked: deque[bytes] = field(default_factory=lambda: deque(maxlen=_OPEN))
    rest: bytearray = field(default_factory=bytearray)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock, self.answered = None, False
        self.rest.clear()


@dataclass(slots=True)
class _Caller:
    """The connection of another machine's agent, or of a stranger until it has asked."""

    since: float
    #: The secret that it knows; "" before its first question.
    secret: str = ""
    rest: bytearray = field(default_factory=bytearray)


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
        #: By user and run: the secret that its ranks know. Any thread replaces it as a whole.
        self._secrets: Mapping[tuple[int, str], str] = {}
        #: The secrets of the runs that ended last.
        self._ended: dict[tuple[int, str], str] = {}
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._callers: dict[socket.socket, _Caller] = {}
        self._links: dict[str, _Link] = {}
        #: By user and run: the machines to watch. Any thread replaces it as a whole.
        self._wanted: Mapping[tuple[int, str], Mapping[str, str]] = {}
        self._followed: Mapping[tuple[int, str], Mapping[str, str]] = {}
        self._lock = threading.Lock()
        self._wake, self._waker = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread: threading.Thread | None = None
        self._closed, self._ticked_at = False, 0.0

    # --- any thread ---

    def open(self, run: tuple[int, str], before: str = "") -> str:
        """Listen, if that has not begun, and return "PORT SECRET" for a run; "" if this machine lets nobody listen.

        Args:
            run: the user and the run.
            before: what the agent before this one had returned, which the run's other machines have; "" if there was none.
        """
        port, secret = place_of(before) or (0, "")
        with self._lock:
            if self._closed:
                return ""
            if self._listener is None:
                try:
                    self._listener = _listen(port if port >= _FIRST_PORT else 0)
                except OSError as error:
                    logger.warning("no heartbeats with other machines: %s", error.strerror)
                    return ""
            if not self._begin():  # what listens is for the next rank that asks
                return ""
            here = self._listener.getsockname()[1]
            if run not in self._secrets:
                if len(self._secrets) >= _RUNS:
                    logger.warning("no heartbeats for run %s: %d runs have them", clip(run[1], NAME), _RUNS)
                    return ""
                self._ended.pop(run, None)
                if port and port != here:
                    logger.warning(
                        "no heartbeats with the machines that know port %d for run %s: this agent listens at "
                        "port %d",
                        port,
                        clip(run[1], NAME),
                        here,
                    )
                self._secrets = {**self._secrets, run: secret or secrets.token_hex(16)}
            return f"{here} {self._secrets[run]}"

    def watch(self, run: tuple[int, str], machines: Mapping[str, str]) -> None:
        """Watch these machines for a run, instead of those before.

        Args:
            run: the user and the run.
            machines: by "ADDRESS PORT SECRET", the names.
        """
        with self._lock:
            if self._closed:
                return
            if run in self._ended:  # its last rank had left while this one registered
                self._secrets = {**self._secrets, run: self._ended.pop(run)}
            self._want(run, machines)

    def over(self, run: tuple[int, str]) -> None:
        """Forget a run whose last rank here has left: its machines, and its secret."""
        with self._lock:
            if self._closed or run not in {*self._secrets, *self._wanted}:
                return
            if run in self._secrets:
                self._ended[run] = self._secrets[run]
                self._secrets = {each: secret for each, secret in self._secrets.items() if each != run}
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]
            self._want(run, {})

    def _want(self, run: tuple[int, str], machines: Mapping[str, str]) -> None:
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

    def _begin(self) -> bool:
        """Wake the thread, which is started first if need be. Return False if it cannot be."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="spotguard-heartbeats", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # a limit of processes counts threads
                logger.warning("no heartbeats with other machines: %s", error)
                return False
            self._thread = thread
        self._waker.send(b"x")
        return True

    # --- the thread ---

    def _run(self) -> None:
        listens, self._ticked_at = False, self._clock.monotonic()
        while not self._closed:
            if not listens and self._listener is not None:
                listens = True
                self._selector.register(self._listener, selectors.EVENT_READ, None)
            try:
                for key, _ in self._selector.select(
                    self._every if self._links or self._wanted or self._callers else None
                ):
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
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: the selector reports the same caller again at once
            self._clock.wait(threading.Event(), self._every / 2)
            return
        sock.setblocking(False)
        if len(self._callers) >= _CALLERS:
            strangers = (each for each, caller in self._callers.items() if not caller.secret)
            if (stranger := next(strangers, None)) is None:
                sock.close()
                return
            self._hang_up(stranger)
        self._callers[sock] = _Caller(self._clock.monotonic())
        self._selector.register(sock, selectors.EVENT_READ, None)

    def _asked(self, sock: socket.socket) -> None:
        """Answer the questions of another agent; hang up on a caller that knows no run's secret."""
        caller = self._callers[sock]
        try:
            data = sock.recv(4 * FRAME)
            caller.rest += data
            for number, code in frames(caller.rest):
                known = {caller.secret} if caller.secret else {*self._secrets.values()}
                knows = (
                    each for each in known if secrets.compare_digest(code, code_of(each, b"ask", number))
                )
                if (secret := next(knows, None)) is None:
                    data = b""
                    break
                caller.secret = secret
                sock.send(number + code_of(secret, b"answer", number))
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
            data = link.sock.recv(4 * FRAME)
        except BlockingIOError:
            return
        except OSError as error:
            # No route and no answer are the silence of a machine. A refusal is that of a kernel that lives.
            hung_up = isinstance(error, ConnectionResetError) and not link.answered
            self._drop(link, ended=hung_up or isinstance(error, ConnectionRefusedError))
            return
        if not data:
            # It has ended, or something between has closed the connection: the next try shows which. An agent that started again
            # hangs up at the first question, until a rank of the run has registered there.
            self._drop(link, ended=not link.answered)
            return
        link.rest += data
        for number, code in frames(link.rest):
            if number in link.asked and secrets.compare_digest(code, code_of(link.secret, b"answer", number)):
                link.asked.remove(number)
                link.answered = True
                self._tell(link.liveness.heard(self._clock.monotonic()))

    def _drop(self, link: _Link, *, ended: bool) -> None:
        if link.sock is not None:
            self._selector.unregister(link.sock)
        link.close()
        if ended:
            self._tell(link.liveness.ended())

    def _tick(self) -> None:
        now = self._clock.monotonic()
        gap = now - self._ticked_at
        due = gap >= self._every
        if not due:  # however often ranks name other machines
            return
        self._ticked_at = now
        if self._followed is not self._wanted:
            self._follow()
        for sock, caller in [*self._callers.items()]:
            if not caller.secret and now - caller.since > _HELLO:
                self._hang_up(sock)
        for link in self._links.values():
            if gap > 2 * self._every:  # this machine, or this agent, was stopped meanwhile
                link.liveness.missed(gap, now)
            self._ask(link, now)
            self._tell(link.liveness.look(now))

    def _follow(self) -> None:
        """Have one link for each machine that a run wants to be watched."""
        self._followed = self._wanted
        runs: dict[str, set[Any]] = {}
        names: dict[str, str] = {}
        for run, machines in self._followed.items():
            for key, name in machines.items():
                runs.setdefault(key, set()).add(run)
                names[key] = name
        for key in [*self._links]:
            if key not in runs:
                self._drop(self._links.pop(key), ended=False)
        for key, of in runs.items():
            if key not in self._links and self._has_room(of):
                address, port, secret = key.split(" ")
                self._links[key] = _Link((address, int(port)), secret, PeerLiveness(names[key], self._every))
            if (link := self._links.get(key)) is not None:
                self._tell(link.liveness.follow(frozenset(of)))

    def _has_room(self, runs: set[Any]) -> bool:
        """Return whether one more link for these runs leaves room for other users' runs."""
        users = Counter(
            uid for link in self._links.values() for uid in {uid for uid, _ in link.liveness.runs}
        )
        return len(self._links) < _LINKS and all(users[uid] < _LINKS // 2 for uid, _ in runs)

    def _ask(self, link: _Link, now: float) -> None:
        if link.sock is not None and link.liveness.quiet(now) > _ANEW and now - link.made_at > _ANEW:
            self._drop(link, ended=False)
        if link.sock is None:
            if link.liveness.gone and now - link.made_at < _BACK:
                return
            try:
                link.sock, link.made_at = socket.socket(socket.AF_INET, socket.SOCK_STREAM), now
            except OSError:  # no descriptor is left
                return
            link.sock.setblocking(False)
            link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sock.connect_ex(link.address)
            self._selector.register(link.sock, selectors.EVENT_READ, link)
        number = secrets.token_bytes(NUMBER)
        link.asked.append(number)
        try:
            link.sock.send(number + code_of(link.secret, b"ask", number))
        except ConnectionRefusedError:  # a socket reports it once, to its next call
            self._drop(link, ended=True)
        except OSError:  # not connected yet; or lost, which the next read reports
            pass

    def _tell(self, seen: MachineSeen | None) -> None:
        if seen is not None:
            self._post(seen)
