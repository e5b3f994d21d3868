"""Training process's end of the agent socket: one thread that listens until the process ends.

Training goes on if the agent was never started, was killed, or restarts. If the agent is lost, the client logs one
warning, tries to connect every second, and reports `unguarded` until it succeeds.
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
from .interpreter_lock import Hurry
from .protocol import Message, Peer, Refused, Register, Role, Welcome

log = logging.getLogger("spotguard")

_INT = struct.Struct("i")
#: Seconds between attempts to reach a lost agent, and between two `Position` messages.
RECONNECT = 1.0
POSITION_EVERY = 2.0
#: Seconds that a droppable message waits for another thread that is sending.
_DROP_AFTER = 0.02
#: Seconds until a send fails. A slower send means that the agent does not read.
SEND_TIMEOUT = 5.0


class SocketClient:
    """Connection to the agent, maintained by a daemon thread named "spotguard-listener".

    Args:
        path: path of the agent's Unix socket.
        hello: makes the `Register` of each new connection (state may have changed since the last one).
        on_message: called on the listener thread with each message of the agent. It must not block.
        position: makes the `Position` that the client sends after each welcome and then every 2 s; returns None
            while there is none.
        on_lost: called on the listener thread when an agent that had sent a `Welcome` is gone.
        on_welcome: called on the listener thread with each `Welcome`.
        reconnect: seconds between attempts to reach a lost agent.
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
        self._lock = threading.Lock()  # guards _socket against senders on other threads
        self._socket: socket.socket | None = None
        self._connecting: socket.socket | None = None
        #: The thread waits for the first one, which `close` wakes by the second one. Each closes its own.
        self._wake, self._waker = socket.socketpair()
        self._hurry = Hurry()
        self._stop = threading.Event()
        self._joined = threading.Event()
        self._answered = threading.Event()
        self._warned = False
        #: Reason why the agent refuses this process; "" if it has sent no refusal.
        self.refused = ""
        #: Whether the `Welcome` of the current agent reported a pending notice.
        self.departing = False
        self._thread = threading.Thread(target=self._run, name="spotguard-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def guarded(self) -> bool:
        """Whether the agent has sent `Welcome` and the connection is still open."""
        return self._joined.is_set()

    def wait_answered(self, timeout: float) -> None:
        """Wait for the agent's first `Welcome` or `Refused`, at most `timeout` seconds."""
        self._answered.wait(timeout)

    def send(self, message: Message, *, droppable: bool = False) -> bool:
        """Send a message from any thread.

        Args:
            droppable: whether a later message replaces this one. A droppable message does not wait for an agent
                that does not read.

        Returns:
            False if the message was not sent. A lost agent learns the state from `Register` when it is back.
        """
        if not self._lock.acquire(timeout=_DROP_AFTER if droppable else -1):
            return False  # another thread already waits for that agent
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
                # The frame may be half sent, so the listener has to connect again.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                return False
        finally:
            self._lock.release()

    def tell_position(self) -> None:
        """Send the current `Position` now, ahead of its interval."""
        if (position := self._position()) is not None:
            self.send(position, droppable=True)

    def close(self, reason: str = "") -> None:
        """Send `Bye` and join the listener thread."""
        if self._stop.is_set():
            return
        self.send(protocol.Bye(reason))
        self._stop.set()
        self._waker.shutdown(socket.SHUT_RDWR)
        self._waker.close()
        self._thread.join(timeout=SEND_TIMEOUT)

    def forget(self) -> None:
        """Close the inherited descriptors in a forked child.

        The parent's connection stays intact, because closing a descriptor does not shut the socket down.
        """
        self._stop.set()
        self._lock = threading.Lock()  # a parent thread that the child lacks may hold the old lock
        interpreter_lock.forget()
        for inherited in (self._socket, self._connecting):
            if inherited is not None and inherited.fileno() >= 0:
                os.close(inherited.detach())
        self._socket = self._connecting = None
        self._wake.close()
        self._waker.close()

    # --- the thread ---

    def _run(self) -> None:
        with self._wake:
            self._listen()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                self._talk()
            except (OSError, ProtocolError) as error:
                self._unguarded(str(error))
            except Exception as error:
                # A bug in spotguard must not end the only thread that receives notices, so the thread connects
                # again.
                log.exception("internal error; please report it [SG704]")
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
            "unguarded: no agent answers on %s (%s); training and background checkpoints continue, but "
            "no notice arrives until the agent is back [SG101]",
            self._path,
            why,
        )

    def _readable(self, seconds: float, *others: int) -> set[int]:
        """Return the readable descriptors among the wake-up socket and `others`.

        It uses `poll`, because `select` ends at descriptor 1023.
        """
        poll = select.poll()
        for fd in (self._wake.fileno(), *others):
            poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(seconds * 1000)}

    def _talk(self) -> None:
        """Run one connection until it ends; return or raise then."""
        connection = self._connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(SEND_TIMEOUT)
        connection.connect(self._path)
        self._check_owner(connection)
        interpreter_lock.announce(connection)
        connection.sendall(protocol.encode(self._hello()))
        with self._lock:  # set only now, so that a sender never waits for a connection that is being made
            self._socket = connection
        peer = Peer(Role.AGENT_NEW)
        while not self._stop.is_set():
            readable = self._readable(POSITION_EVERY, connection.fileno())
            if connection.fileno() in readable:
                self._hurry.begin()
                try:
                    self._hear(connection, peer)
                finally:
                    self._hurry.end()
            elif not readable and self._joined.is_set():
                self.tell_position()  # droppable, so an agent that does not read cannot hold up the lock

    def _hear(self, connection: socket.socket, peer: Peer) -> None:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError("the agent closed the connection")
        for message in peer.feed(data):
            self._handle(message)

    def _check_owner(self, connection: socket.socket) -> None:
        if (uid := peer_credentials.stranger(connection, self._path)) is not None:
            raise ProtocolError(
                f"user {uid} listens there, expected you, root, or the user of this machine's service"
            )

    def _handle(self, message: Message) -> None:
        match message:
            case Welcome(notice=notice):
                self.departing = notice
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
    """Whether less than an eighth of the send buffer is still unread.

    A Unix socket is not writable once a quarter of the buffer is unread (`unix_writable`). With an eighth as the
    limit, important messages never wait for droppable ones.
    """
    waiting: int = _INT.unpack(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_INT.size)))[0]
    return waiting < connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 8
