"""The hook's end of the socket: one thread that listens, for as long as the process lives.

Whatever the agent does (never there, killed, restarted) training goes on: a lost agent is one warning,
a reconnection attempt every second, and `unguarded` in the meantime.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable

from ..providers.errors import ProtocolError
from . import protocol
from .protocol import Message, Peer, Refused, Register, Role, Welcome

log = logging.getLogger("spotguard")

#: Seconds between attempts to find a lost agent, and between two `Position`s.
RECONNECT = 1.0
POSITION_EVERY = 2.0
#: A send that takes longer has an agent at the other end that is not reading.
SEND_TIMEOUT = 5.0


class Client:
    """The connection to the agent, kept up by a daemon thread named "spotguard-listener".

    Args:
        path: the agent's Unix socket.
        hello: makes the `Register` of each new connection (state may have moved on since the last).
        on_message: called on the listener thread with each message of the agent. It must not block.
        position: makes the `Position` that is sent every few seconds.
        on_lost: called on the listener thread when an agent that had welcomed us is gone.
    """

    def __init__(
        self,
        path: str,
        *,
        hello: Callable[[], Register],
        on_message: Callable[[Message], None],
        position: Callable[[], Message],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._hello = hello
        self._on_message = on_message
        self._position = position
        self._on_lost = on_lost
        self._lock = threading.Lock()  # guards _socket for senders on other threads
        self._socket: socket.socket | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stop = threading.Event()
        self._joined = threading.Event()
        self._answered = threading.Event()
        self._warned = False
        #: Why the agent will not have this process; "" while it has not said so.
        self.refused = ""
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

    def send(self, message: Message) -> bool:
        """Send from any thread. False: there is no agent now (it learns from `Register` when it is back)."""
        with self._lock:
            if self._socket is None:
                return False
            try:
                self._socket.sendall(protocol.encode(message))
                return True
            except OSError as error:
                log.debug("the agent's socket broke while sending %s: %s", message.type, error)
                return False  # the listener sees the same broken socket and reconnects

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
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)

    # --- the thread ---

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._talk()
            except (OSError, ProtocolError) as error:
                if not self._stop.is_set() and not self._warned:
                    self._warned = True
                    log.warning(
                        "unguarded: no agent answers on %s (%s); training and background checkpoints go on, "
                        "notices are not heard until it is back",
                        self._path,
                        error,
                    )
            lost = self._joined.is_set()
            self._joined.clear()
            with self._lock:
                if self._socket is not None:
                    self._socket.close()
                    self._socket = None
            if lost and not self._stop.is_set():
                self._on_lost()
            if not self._stop.is_set():
                self._pause(RECONNECT)

    def _pause(self, seconds: float) -> None:
        select.select([self._wake_read], [], [], seconds)

    def _talk(self) -> None:
        """One connection's life. Returns or raises when it is over."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._lock:
            self._socket = connection
            connection.settimeout(SEND_TIMEOUT)
            connection.connect(self._path)
            connection.sendall(protocol.encode(self._hello()))
        peer = Peer(Role.AGENT_NEW)
        while not self._stop.is_set():
            readable, _, _ = select.select([connection.fileno(), self._wake_read], [], [], POSITION_EVERY)
            if connection.fileno() in readable:
                data = connection.recv(65536)
                if not data:
                    raise ConnectionResetError("the agent closed the connection")
                for message in peer.feed(data):
                    self._handle(message)
            elif not readable and self._joined.is_set():
                self.send(self._position())

    def _handle(self, message: Message) -> None:
        match message:
            case Welcome():
                if self._warned:
                    log.warning("guarded again: the agent is back on %s", self._path)
                self._warned = False
                self.refused = ""
                self._joined.set()
                self._answered.set()
            case Refused(reason=reason):
                if not self._warned:
                    log.warning("unguarded: the agent on %s refuses this process: %s", self._path, reason)
                self._warned = True
                self.refused = reason
                self._answered.set()
            case _:
                self._on_message(message)
