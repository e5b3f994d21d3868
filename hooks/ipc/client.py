"""The hook's end of the socket: one thread that listens, for as long as the process lives.

Whatever the agent does (never there, killed, restarted) training goes on: a lost agent is one warning,
a reconnection attempt every second, and `unguarded` in the meantime.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import socket
import struct
import termios
import threading
from collections.abc import Callable

from ...providers.errors import ProtocolError
from . import interpreter_lock, peer_credentials, protocol
from .protocol import Message, Peer, Refused, Register, Role, Welcome

log = logging.getLogger("spotguard")

_INT = struct.Struct("i")
#: Seconds between attempts to find a lost agent, and between two `Position`s.
RECONNECT = 1.0
POSITION_EVERY = 2.0
#: Seconds for which a droppable word waits for another thread that is just sending.
_DROP_AFTER = 0.02
#: A send that takes longer has an agent at the other end that is not reading.
SEND_TIMEOUT = 5.0


class SocketClient:
    """The connection to the agent, kept up by a daemon thread named "spotguard-listener".

    Args:
        path: the agent's Unix socket.
        hello: makes the `Register` of each new connection (state may have moved on since the last).
        on_message: called on the listener thread with each message of the agent. It must not block.
        position: makes the `Position` that is sent after each welcome and then every few seconds; None while there is none.
        on_lost: called on the listener thread when an agent that had welcomed us is gone.
        on_welcome: called on the listener thread when an agent has welcomed us.
        reconnect: seconds between attempts to find a lost agent.
    """

    def __init__(
        self,
        path: str,
        *,
        hello: Callable[[], Register],
        on_message: Callable[[Message], None],
        position: Callable[[], Message | None],
        on_lost: Callable[[], None] = lambda: None,
        on_welcome: Callable[[Welcome], None] = lambda welcome: None,
        reconnect: float = RECONNECT,
    ) -> None:
        self._path = path
        self._hello = hello
        self._on_message = on_message
        self._position = position
        self._on_lost = on_lost
        self._on_welcome = on_welcome
        self._reconnect = reconnect
        self._lock = threading.Lock()  # guards _socket for senders on other threads
        self._socket: socket.socket | None = None
        self._connecting: socket.socket | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stop = threading.Event()
        self._joined = threading.Event()
        self._answered = threading.Event()
        self._warned = False
        #: Why the agent will not have this process; "" while it has not said so.
        self.refused = ""
        #: The agent's first words were that a notice is pending.
        self.doomed = False
        self._thread = threading.Thread(target=self._run, name="spotguard-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def guarded(self) -> bool:
        """Whether an agent has welcomed us and the connection stands."""
        return self._joined.is_set()

    def wait_answered(self, timeout: float) -> None:
        """Wait for the agent's first `Welcome` or `Refused`."""
        self._answered.wait(timeout)

    def send(self, message: Message, *, droppable: bool = False) -> bool:
        """Send from any thread. False: there is no agent now (it learns from `Register` when it is back).

        Args:
            droppable: a word that another will follow: an agent that does not read is not waited for.
        """
        if not self._lock.acquire(timeout=_DROP_AFTER if droppable else -1):
            return False  # somebody waits for that agent already
        try:
            if self._socket is None:
                return False
            try:
                if droppable and not _has_room(self._socket):
                    return False
                self._socket.sendall(protocol.encode(message))
                return True
            except OSError as error:
                log.debug("the agent's socket broke while sending %s: %s", message.type, error)
                # A frame may be half sent: the listener is to connect anew.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                return False
        finally:
            self._lock.release()

    def tell_position(self) -> None:
        """Say where training stands: now, and not only when its time comes."""
        if (position := self._position()) is not None:
            self.send(position, droppable=True)

    def close(self, reason: str = "") -> None:
        """Say goodbye and join the thread."""
        if self._stop.is_set():
            return
        self.send(protocol.Bye(reason))
        self._stop.set()
        os.write(self._wake_write, b"x")
        self._thread.join(timeout=SEND_TIMEOUT)

    def forget(self) -> None:
        """In a forked child: close the inherited descriptors at once. The parent's connection is untouched:
        closing a descriptor is not shutting the socket down."""
        self._stop.set()
        self._lock = threading.Lock()  # the other may be held by a thread that the child has not
        interpreter_lock.forget()
        for inherited in (self._socket, self._connecting):
            if inherited is not None and inherited.fileno() >= 0:
                os.close(inherited.detach())
        self._socket = self._connecting = None
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)

    # --- the thread ---

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._talk()
            except (OSError, ProtocolError) as error:
                self._unguarded(str(error))
            except Exception as error:
                # A mistake of ours must not end the only thread that hears notices: it connects anew.
                log.exception("spotguard failed inside; please report this")
                self._unguarded(f"{type(error).__name__}: {error}")
            lost = self._joined.is_set()
            self._joined.clear()
            with self._lock:
                if self._connecting is not None:
                    self._connecting.close()
                self._socket = self._connecting = None
            if lost and not self._stop.is_set():
                self._on_lost()
            if not self._stop.is_set():
                self._readable(self._reconnect)

    def _unguarded(self, why: str) -> None:
        if self._stop.is_set() or self._warned:
            return
        self._warned = True
        log.warning(
            "unguarded: no agent answers on %s (%s); training and background checkpoints go on, "
            "notices are not heard until it is back",
            self._path,
            why,
        )

    def _readable(self, seconds: float, *others: int) -> set[int]:
        """Which of the wake-up pipe and the others can be read. (`poll`: `select` ends at descriptor 1023.)"""
        poll = select.poll()
        for fd in (self._wake_read, *others):
            poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(seconds * 1000)}

    def _talk(self) -> None:
        """One connection's life. Returns or raises when it is over."""
        connection = self._connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(SEND_TIMEOUT)
        connection.connect(self._path)
        self._check_owner(connection)
        interpreter_lock.announce(connection)
        connection.sendall(protocol.encode(self._hello()))
        with self._lock:  # only now: a sender never waits for a connection that is being made
            self._socket = connection
        peer = Peer(Role.AGENT_NEW)
        while not self._stop.is_set():
            readable = self._readable(POSITION_EVERY, connection.fileno())
            if connection.fileno() in readable:
                interpreter_lock.hurry("message")
                try:
                    self._hear(connection, peer)
                finally:
                    interpreter_lock.relax("message")
            elif not readable and self._joined.is_set():
                self.tell_position()  # the lock is not held by one who is not heard

    def _hear(self, connection: socket.socket, peer: Peer) -> None:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError("the agent closed the connection")
        for message in peer.feed(data):
            self._handle(message)

    def _check_owner(self, connection: socket.socket) -> None:
        if (uid := peer_credentials.stranger(connection, self._path)) is not None:
            raise ProtocolError(
                f"user {uid} listens there, who is neither you nor root nor this machine's service"
            )

    def _handle(self, message: Message) -> None:
        match message:
            case Welcome(notice=notice):
                self.doomed = notice
                if self._warned:
                    log.warning("guarded again: the agent is back on %s", self._path)
                self._warned = False
                self.refused = ""
                self._joined.set()
                self._answered.set()
                self._on_welcome(message)
                self.tell_position()
            case Refused(reason=reason):
                if not self._warned:
                    log.warning("unguarded: the agent on %s refuses this process: %s", self._path, reason)
                self._warned = True
                self.refused = reason
                self._answered.set()
            case _:
                self._on_message(message)


def _has_room(connection: socket.socket) -> bool:
    """Whether less than an eighth of the buffer is waiting to be read. (From a quarter on a Unix socket is not writable,
    `unix_writable`: so what must be said never waits for what was not worth it.)"""
    waiting: int = _INT.unpack(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_INT.size)))[0]
    return waiting < connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 8
