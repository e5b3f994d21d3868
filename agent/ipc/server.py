"""The Unix socket server: one thread, which never blocks on a peer and posts everything as events (law 10).

The server drops a bad or slow peer, which harms no other peer. Frames, buffers, counts and times are capped. An error
on one connection ends that connection only.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import selectors
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from ...hooks.ipc import protocol
from ...hooks.ipc.protocol import Message, Role
from ...providers.clock import Clock
from ...providers.errors import ProtocolError
from ...providers.text import NAME, clip
from ..events import Asked, Closed, Event, Heard, Opened, StatusAsked, Watching
from .admission import FIRST, TOO_OFTEN, UserAllowances, refusal
from .connection import Connection, DisconnectedPeers, Limits
from .listener import listen
from .process_stat import has_ended

logger = logging.getLogger("spotguard.agent")

#: Seconds before the next turn after a bug.
_AFTER_ERROR = 0.1
#: Seconds for which the messages of a user who has sent too much wait.
_PAUSE = 0.25
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Server:
    """The server: it listens from construction on, and serves from `start` to `close`. Any thread may call `send`."""

    def __init__(
        self,
        path: Path,
        post: Callable[[Event], None],
        clock: Clock,
        *,
        service: bool = False,
        lives: Callable[[str], object] = bool,
        heartbeat: Callable[[tuple[int, str], str], str] = lambda run, before: "",
        limits: Limits | None = None,
    ) -> None:
        """Listen; `start` starts the thread.

        Args:
            path: the path of the socket.
            post: takes the events.
            clock: the clock for the limits.
            service: whether this is the service's socket, which a group may use.
            lives: returns whether the process of a written record still lives.
            heartbeat: returns where this agent answers the heartbeats of other machines' agents; called for a process whose job
                has such, with its user and run, and where the agent before this one answered.
            limits: the limits for peers.

        Raises:
            UsageError: the agent cannot listen at the path.
        """
        self._post = post
        self._clock = clock
        self._service = service
        self._heartbeat = heartbeat
        self._limits = limits or Limits()
        self.listener = listen(path, service=service, lives=lives)
        self._selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._connections: dict[int, Connection] = {}
        self._followed = DisconnectedPeers(
            self._selector, self._limits.followed, lambda number, reason: post(Closed(number, reason))
        )
        self._allowances = UserAllowances(self._limits, clock)
        #: Connections that are not read until then, the longest unread first.
        self._paused: dict[int, Connection] = {}
        self._paused_until: float | None = None
        self._last_number = 0
        self._deaf_until: float | None = None
        self._stop = self._closed = False
        self._never = threading.Event()
        #: Whether a notice is being answered. The loop sets it, and each `Welcome` carries it.
        self.departing = False
        self._thread = threading.Thread(target=self._run, name="spotguard-server", daemon=True)

    @property
    def path(self) -> Path:
        return self.listener.path

    @property
    def serves(self) -> bool:
        """Whether the server's thread lives. Without it no message goes in or out."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self._awake)
        self._hear(True)
        self._thread.start()

    def send(self, session: int, message: Message) -> None:
        """Send `message` to a session; nothing happens if the session has gone. Never blocks."""
        self.send_all((session,), message)

    def send_all(self, sessions: Iterable[int], message: Message) -> None:
        """Send `message` to each of these sessions that is still there. Never blocks."""
        self._later(lambda: self._tell(sessions, message))

    def signal(self, session: int, signum: int, group: int) -> None:
        """Signal a session's process, unless it is in `group`. A process without its socket is signalled too. Never blocks."""
        self._later(lambda: self._signal(session, signum, group))

    def _later(self, order: Callable[[], None]) -> None:
        if not self._closed:
            self._outbox.put(order)
            self._wake()

    def close(self) -> None:
        """Send the queued messages, as far as the peers' buffers take them, and stop."""
        if self._closed:
            return
        self._closed = self._stop = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        self.listener.close()
        self._selector.close()
        os.close(self._wake_fd)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    # --- the thread ---

    def _run(self) -> None:
        while not self._stop:
            for key, mask in self._selector.select(self._timeout()):
                self._do(key.data, mask)
            self._do(self._sweep)
        self._deliver()
        for connection in list(self._connections.values()):
            if (pidfd := connection.release()) >= 0:
                os.close(pidfd)
        self._followed.close()

    def _do(self, what: Callable[..., None], *of: int) -> None:
        try:
            what(*of)
        except Exception:  # a bug must not end the server for every peer
            logger.exception("an error of the agent's socket")
            self._clock.wait(self._never, _AFTER_ERROR)  # the selector reports the same event again at once

    def _timeout(self) -> float | None:
        """Return the seconds until some peer's time is over; None, and no wake-up at all, while no peer is late."""
        due = [c.due for c in self._connections.values()] + [self._deaf_until, self._paused_until]
        first = min((t for t in due if t is not None), default=None)
        return None if first is None else max(0.0, first - self._clock.monotonic()) + 0.001

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        for connection in list(self._connections.values()):
            if why := connection.overdue(now):
                self._drop(connection, why)
        if self._deaf_until is not None and now >= self._deaf_until:
            self._hear(True)
        if self._paused_until is not None and now >= self._paused_until:
            paused, self._paused, self._paused_until = self._paused, {}, None
            for connection in paused.values():
                self._ready(connection, selectors.EVENT_WRITE)  # `_flush` lets it be read again

    def _awake(self, mask: int) -> None:
        os.eventfd_read(self._wake_fd)
        self._deliver()

    def _deliver(self) -> None:
        while True:
            try:
                order = self._outbox.get_nowait()
            except queue.Empty:
                return
            self._do(order)

    def _tell(self, numbers: Iterable[int], message: Message) -> None:
        for connection in (self._connections[each] for each in numbers if each in self._connections):
            self._say(connection, message)

    def _signal(self, number: int, signum: int, group: int) -> None:
        processes = self._followed.of(number)
        if (connection := self._connections.get(number)) is not None and connection.pidfd >= 0:
            processes[connection.pid] = connection.pidfd
        for pid, pidfd in processes.items():
            try:
                if os.getpgid(pid) != group:
                    signal.pidfd_send_signal(pidfd, signum)
            except ProcessLookupError:
                pass  # it has ended: the selector reports its pidfd in a moment
            except PermissionError:
                logger.warning("pid %d cannot be signalled: it runs as another user (sudo?) [SG111]", pid)

    # --- new connections ---

    def _hear(self, on: bool) -> None:
        """Accept connections, or pause for a second: without a free descriptor the server would spin on `accept`."""
        self._deaf_until = self._clock.monotonic() + 1.0
        if not on:
            self._selector.unregister(self.listener.socket)
            return
        with contextlib.suppress(OSError):  # epoll refused: the server tries again in a second
            self._selector.register(self.listener.socket, selectors.EVENT_READ, self._accept)
            self._deaf_until = None

    def _accept(self, mask: int) -> None:
        for _ in range(64):  # then the connected peers have their turn
            try:
                sock, _ = self.listener.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    continue  # that peer has already gone
                logger.warning("no more connections: %s", error.strerror)
                if not self._drop_a_new_one("no descriptors are left"):
                    self._hear(False)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._last_number += 1
        try:
            connection = Connection(self._last_number, sock, self._clock.monotonic(), self._limits)
        except OSError:  # it has already gone
            sock.close()
            return
        # A service accepts every user who could open the directory: the directory's group lists them.
        if not self._service and connection.uid not in (0, os.geteuid()):
            logger.warning("uid %d (pid %d) may not connect here", connection.uid, connection.pid)
            connection.release()
            return
        if not self._has_room(connection):
            connection.release()
            return
        try:
            self._watch(connection)
        except OSError as error:  # epoll's own limit, or no memory: epoll_ctl(2)
            logger.warning("no more connections: %s", error.strerror)
            connection.release()
            return
        self._connections[connection.number] = connection

    def _has_room(self, newcomer: Connection) -> bool:
        limits, uid = self._limits, newcomer.uid
        returns = self._followed.has(newcomer.pid)
        if not self._allowances.admit(uid, returns=returns):
            return False
        if sum(1 for c in self._connections.values() if c.new) >= limits.unregistered:
            self._drop_a_new_one("too many silent connections")
        mine = [c for c in self._connections.values() if c.uid == uid]
        if len(self._connections) >= limits.connections or len(mine) >= limits.per_user:
            other = next((c for c in mine if c.register is None), None)
            if not returns or other is None:
                logger.warning("no room for another connection of uid %d: it has %d", uid, len(mine))
                return False
            self._drop(other, "a training process of its user comes back")
        return True

    def _drop_a_new_one(self, why: str) -> bool:
        """Make room: drop the oldest connection without a message, of the user with the most of them.

        Returns:
            False if every connection has sent a message.
        """
        new = [c for c in self._connections.values() if c.new]
        if not new:
            return False
        uid, _ = Counter(c.uid for c in new).most_common(1)[0]
        self._drop(next(c for c in new if c.uid == uid), why)
        return True

    # --- incoming messages ---

    def _ready(self, connection: Connection, mask: int) -> None:
        if connection.number not in self._connections:
            return  # dropped earlier in this round
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush(connection)
            if mask & selectors.EVENT_READ and not (self._pauses(connection) or self._listen_to(connection)):
                # So ends each training. What ended it is told by the command's end, or by the launcher.
                self._drop(connection, "it closed the connection", logging.DEBUG)
        except (ProtocolError, OSError) as error:
            self._drop(connection, str(error))
        except Exception as error:  # noqa: BLE001 (a bug that one peer triggers must not harm the others)
            logger.error("dropping pid %d: %s: %s", connection.pid, type(error).__name__, error)
            self._drop(connection, "an error of the agent")

    def _pauses(self, connection: Connection) -> bool:
        """Leave the messages of a training process unread for a moment if those of its user are too many."""
        if connection.register is None or self._allowances.spend(connection.uid, Role.HOOK, 0):
            return False
        self._paused[connection.number] = connection
        self._paused_until = self._paused_until or self._clock.monotonic() + _PAUSE
        self._watch(connection)
        return True

    def _listen_to(self, connection: Connection) -> bool:
        role = Role.NEW if connection.register is None else Role.HOOK
        messages = connection.read(self._clock.monotonic())
        self._allowances.spend(connection.uid, role, connection.cost)
        for message in messages or ():
            if connection.number not in self._connections:
                return True
            self._take(connection, message)
        return messages is not None

    def _take(self, connection: Connection, message: Message) -> None:
        if not isinstance(message, FIRST):
            self._post(Heard(connection.number, message))
        elif why := refusal(connection, message, self._connections.values(), self._allowances):
            level = logging.DEBUG if why == TOO_OFTEN else logging.WARNING
            logger.log(level, "refusing pid %d: %s", connection.pid, why)
            connection.peer.role = Role.GONE
            self._say(connection, protocol.Refused(why))
        elif isinstance(message, protocol.Register):
            self._welcome(connection, message)
        elif isinstance(message, protocol.Unattached):
            self._post(Heard(connection.number, message))
            self._drop(connection, "done", logging.DEBUG)
        elif isinstance(message, protocol.Watch):
            self._post(Watching(connection.number))
        elif isinstance(message, protocol.Ask):
            if message.what == "status":
                self._post(StatusAsked(connection.number, connection.uid))
            else:
                self._post(Asked(connection.number, connection.uid, message.window, message.preempt))

    def _welcome(self, connection: Connection, message: protocol.Register) -> None:
        connection.register = message
        self._selector.register(connection.pidfd, selectors.EVENT_READ, lambda mask: self._died(connection))
        # In this order, so that a session with its Welcome gets every later notice. (The loop's answer to Opened passes
        # through this thread, so that it still comes after the Welcome.)
        self._post(Opened(connection.number, connection.pid, connection.uid, message))
        run = connection.uid, clip(message.run_id, NAME)
        welcome = protocol.Welcome(
            connection.number,
            os.getpid(),
            notice=self.departing,
            heartbeat=self._heartbeat(run, message.heartbeat) if message.elsewhere else "",
        )
        self._say(connection, welcome)

    # --- outgoing messages ---

    def _say(self, connection: Connection, message: Message) -> None:
        if isinstance(message, protocol.Refused) or (isinstance(message, protocol.Answer) and message.last):
            connection.closing = True
        try:
            connection.queue(message)
            self._flush(connection)
        except (ProtocolError, OSError) as error:
            self._drop(connection, str(error))

    def _flush(self, connection: Connection) -> None:
        connection.flush(self._clock.monotonic())
        if connection.closing and not connection.wants_to_write:
            self._drop(connection, "done")
            return
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        wanted = 0 if connection.number in self._paused else selectors.EVENT_READ
        wanted |= selectors.EVENT_WRITE if connection.wants_to_write else 0
        key = self._selector.get_map().get(connection.sock)
        if wanted == (key.events if key else 0):
            return
        if key:
            self._selector.unregister(connection.sock)
        if wanted:
            self._selector.register(connection.sock, wanted, lambda mask: self._ready(connection, mask))

    # --- the end of a connection ---

    def _died(self, connection: Connection) -> None:
        """Drop a process that has ended, after reading what it wrote. A child's open descriptor does not delay this."""
        connection.drained = False
        try:
            while connection.number in self._connections and not connection.drained:
                if not self._listen_to(connection):
                    break
        except (ProtocolError, OSError):
            pass  # the process has ended anyway
        self._drop(connection, "its process ended")

    def _drop(self, connection: Connection, reason: str, level: int = logging.INFO) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._paused.pop(connection.number, None)
        self._unregister(connection.sock)
        pidfd = connection.release()
        if pidfd < 0:
            if not connection.new:
                self._post(Closed(connection.number, reason))
            return
        self._unregister(pidfd)
        alive = not has_ended(pidfd)
        logger.log(level, "session %d (pid %d) closed: %s", connection.number, connection.pid, reason)
        self._post(Closed(connection.number, reason, alive))
        if alive:
            self._followed.add(connection.number, connection.pid, pidfd, connection.uid)
        else:
            os.close(pidfd)

    def _unregister(self, fileobj: socket.socket | int) -> None:
        with contextlib.suppress(KeyError):  # it was never registered
            self._selector.unregister(fileobj)
