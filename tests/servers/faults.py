"""What goes wrong between a client and a store, on demand: a proxy before any HTTP store that forwards bytes, until told not to.

Host and signature pass unchanged, so that the store believes it is spoken to directly.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.servers.faultplan import Asked, Fault, Plan
from tests.servers.wire import Cut, read_head, request_body, response_body

#: SO_LINGER on, for 0 seconds: close() then resets the connection (socket(7)).
_RESET = struct.pack("ii", 1, 0)


class FaultProxy:
    """Stands before `upstream` at `url`. Methods may be called at any time, from any thread.

    Args:
        upstream: the store's endpoint, of plain HTTP.
        seed: decides which requests a fault with a share below 1 hits.
        tls: the server's side, for https to the client.
        at: a socket that listens already, wherever that is, to serve on first; it is ours from now on.
    """

    def __init__(
        self,
        upstream: str,
        seed: int = 0,
        tls: ssl.SSLContext | None = None,
        at: socket.socket | None = None,
    ) -> None:
        parts = urlsplit(upstream)
        assert parts.scheme == "http", upstream
        assert parts.hostname is not None
        self._upstream = (parts.hostname, parts.port or 80)
        self._tls = tls
        self._plan = Plan(seed)
        self._change = threading.Condition()
        self._stalled = 0
        self._go_on = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        # Held without listening: while the proxy is gone, the port refuses, and nobody else gets it.
        self._holder = _bound(0)
        self._listener: socket.socket | None = None
        self._at = at
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._holder.getsockname()[1]}"

    def inject(self, fault: Fault) -> None:
        """From now on. The first fault that a request meets is the one it gets."""
        self._plan.add(fault)

    def heal(self) -> None:
        """No faults from now on, and whatever is stalled goes on."""
        self._plan.clear()
        self.go_on()

    def go_on(self) -> None:
        """Let go of what is stalled now."""
        with self._change:
            self._go_on.set()
            self._go_on = threading.Event()

    def vanish(self) -> None:
        """Be gone: connections end where they are, and new ones are refused, until `come_back`."""
        with self._change:
            listener, self._listener = self._listener, None
            gone = list(self._open)
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            listener.close()
        for connection in gone:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    def come_back(self) -> None:
        """Listen again, on the same port."""
        listener, self._at = self._at or _bound(self._holder.getsockname()[1]), None
        listener.listen(128)
        with self._change:
            assert self._listener is None, "it is there"
            self._listener = listener
            self._run(self._accept, listener)

    @property
    def seen(self) -> tuple[Asked, ...]:
        """The requests in the order of their heads."""
        return self._plan.seen

    def faults_met(self, kind: str = "") -> int:
        """How many requests met a fault, of this kind or any."""
        return sum(asked.fault != "" and kind in ("", asked.fault) for asked in self.seen)

    def wait_for_stalled(self, count: int = 1, timeout: float = 100.0) -> bool:
        """Block until so many requests stand still; False when that took too long."""
        with self._change:
            return self._change.wait_for(lambda: self._stalled >= count, timeout)

    def wait_for_rest(self, timeout: float = 100.0) -> bool:
        """Block until no connection is open: whoever asked is gone, and what was asked is done; False when that took too long."""
        with self._change:
            return self._change.wait_for(lambda: not self._open, timeout)

    def __enter__(self) -> Self:
        self.come_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.vanish()
        self.heal()
        for thread in self._threads:
            thread.join()
        self._holder.close()

    def _run(self, target: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(connection,), name="fault proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # gone
                return
            with self._change:
                if self._listener is not listener:
                    connection.close()
                    return
                self._open.add(connection)
                self._run(self._serve, connection)

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            # Either side may leave.
            with client, suppress(OSError, Cut), self._open_to(client) as wire, wire.makefile("rb") as stream:
                while self._exchange(wire, stream):
                    pass
        finally:
            self._forget(client)

    @contextlib.contextmanager
    def _open_to(self, client: socket.socket) -> Iterator[socket.socket]:
        if self._tls is None:
            yield client
            return
        # A copy is wrapped, so that `vanish` can still end the connection by its own.
        with (
            socket.socket(fileno=os.dup(client.fileno())) as copy,
            self._tls.wrap_socket(copy, server_side=True) as wire,
        ):
            yield wire

    def _exchange(self, client: socket.socket, stream: BufferedReader) -> bool:
        """One request and its answer; whether the connection serves another."""
        if (head := read_head(stream)) is None:
            return False
        fault = self._plan.decide(Asked(head.first[0], head.first[1], headers=head.headers))
        waits = head.headers.get("expect", "").lower() == "100-continue"
        if fault is not None and fault.kind == "answer":
            if not waits:
                for _ in request_body(head, stream):
                    pass
            client.sendall(fault.answer("close" if waits else "keep-alive"))
            return not waits
        # A connection of its own for each: one kept would be closed by the store's own idle limit, a fault unasked for.
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(socket.create_connection(self._upstream, 60))
            self._keep(store, stack)
            store.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = stack.enter_context(store.makefile("rb"))
            store.sendall(head.raw)
            # The client sends its body when the store says so, or when it is tired of waiting.
            if waits and store in select.select([store, client], [], [], 60)[0]:
                reply = read_head(answers)
                if reply is None:
                    return False
                client.sendall(reply.raw)
                if reply.status != 100:  # a refusal, without a look at the body
                    self._pump(response_body(head.first[0], reply, answers), client.sendall, None, client)
                    return False
            here = fault if fault is not None and fault.where == "request" else None

            def tell(piece: bytes, store: socket.socket = store) -> None:
                # One that refused and left before it heard all has answered all the same.
                with suppress(BrokenPipeError, ConnectionResetError):
                    store.sendall(piece)

            if not self._pump(request_body(head, stream), tell, here, client):
                return False
            while (reply := read_head(answers)) is not None and reply.status < 200:
                pass
            if reply is None:
                return False
            there = fault if fault is not None and fault.where == "response" else None
            if there is not None and there.after == 0 and there.kind in ("reset", "stall"):
                if not self._strike(there, client):
                    return False
                there = None
            client.sendall(reply.raw)
            if not self._pump(response_body(head.first[0], reply, answers), client.sendall, there, client):
                return False
        lasting = reply.first[0] == "HTTP/1.1" and reply.headers.get("connection", "").lower() != "close"
        return lasting and head.headers.get("connection", "").lower() != "close"

    def _keep(self, connection: socket.socket, stack: contextlib.ExitStack) -> None:
        """Where `vanish` finds it."""
        with self._change:
            self._open.add(connection)
        stack.callback(self._forget, connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._change:
            self._open.discard(connection)
            self._change.notify_all()

    def _pump(
        self,
        pieces: Iterable[bytes],
        say: Callable[[bytes], None],
        fault: Fault | None,
        client: socket.socket,
    ) -> bool:
        """Pass a body on, up to what goes wrong in it; False when that was the end of the connection."""
        passed = 0
        for piece in pieces:
            if fault is not None and passed + len(piece) > fault.after:
                at = fault.after - passed
                say(piece[:at])
                if not self._strike(fault, client):
                    return False
                piece = piece[at:]
                if fault.kind == "corrupt":
                    piece = bytes([piece[0] ^ 1]) + piece[1:]
                passed, fault = passed + at, None
            say(piece)
            passed += len(piece)
        return fault is None or fault.kind == "corrupt" or self._strike(fault, client)

    def _strike(self, fault: Fault, client: socket.socket) -> bool:
        if fault.kind == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if fault.kind == "stall":
            with self._change:
                go_on = self._go_on
                self._stalled += 1
                self._change.notify_all()
            go_on.wait()
            with self._change:
                self._stalled -= 1
        return fault.kind in ("stall", "corrupt")


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
