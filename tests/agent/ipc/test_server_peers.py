"""Bad peers on the real socket: garbage, silence, floods. Nothing but that peer is affected (law 10)."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import struct

import pytest

from spotguard.agent.events import Closed, Heard, Opened, StatusAsked, Watching
from spotguard.agent.ipc.admission import TOO_OFTEN
from spotguard.agent.ipc.connection import DisconnectedPeers, Limits
from spotguard.hooks.ipc.protocol import (
    MAX_FRAME,
    Answer,
    Ask,
    Bye,
    Committed,
    Delivered,
    Position,
    Preempt,
    Refused,
    Register,
    Role,
    Watch,
    encode,
)
from tests.fakes.hook import FakeHook
from tests.fakes.serving import QUICK, Events, Serving, is_fine, registered

# --- bad peers ---


def header(size: int) -> bytes:
    return struct.pack(">I", size)


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "a header of 1 GiB": header(1 << 30) + b"x" * 1000,
    "a header of 4 GiB": b"\xff\xff\xff\xff",
    "a frame that is no JSON": header(3) + b"abc",
    "a list": header(2) + b"[]",
    "nothing in a frame": header(0),
    "an unknown type": header(15) + b'{"type": "nice"}'[:15],
    "a pickle": header(20) + b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system"[:20],
    "deep nesting": header(200_000) + b"[" * 200_000,
    "before registering": encode(Delivered("n", 1.0)),
    "an agent's word": encode(Preempt("n", 1.0, 0.0, "terminate", "me")),
    "registering twice": encode(Register(1, "r", "x")) * 2,
    "speaking after goodbye": encode(Register(1, "r", "x")) + encode(Bye()) + encode(Delivered("n", 1.0)),
    "asking twice": encode(Ask("status")) * 2,
    "registering after asking": encode(Ask("status")) + encode(Register(1, "r", "x")),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_costs_its_sender_the_connection_and_nobody_else_anything(
    serve: Serving, events: Events, what: str
) -> None:
    """Dropped at once; the registered one is heard and hears, and the server still takes new ones."""
    server = serve()
    hook, session = registered(server, events)
    with hook:
        with FakeHook(server.path) as bad:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                bad.sock.sendall(GARBAGE[what])
            with contextlib.suppress(Exception):  # what it hears before the end does not matter
                bad.hears_the_end()
        is_fine(server, hook, session, events)
        FakeHook.registered(server.path).close()


@pytest.mark.parametrize("sent", [b"", b"\x00", header(100), header(100) + b'{"type"'])
def test_a_peer_that_stalls_is_dropped_in_a_while(serve: Serving, events: Events, sent: bytes) -> None:
    """Silent from the start, or in the middle of a frame; a registered one may be silent for ever."""
    server = serve(QUICK)
    hook, session = registered(server, events)
    with hook, FakeHook(server.path) as slow:
        slow.sock.sendall(sent)
        assert slow.hears_the_end()
        is_fine(server, hook, session, events)


def test_a_peer_that_drips_is_dropped_however_steadily_it_drips(serve: Serving, events: Events) -> None:
    """A byte now and then makes no frame: time counts from the frame's first byte."""
    server = serve(QUICK)
    hook, session = registered(server, events)
    with hook, FakeHook(server.path) as slow:
        slow.sock.settimeout(0.02)
        frame = encode(Register(1, "r" * 10_000, "x"))
        dropped = False
        for byte in frame:
            try:
                slow.sock.sendall(bytes([byte]))
                dropped = slow.sock.recv(1) == b""
            except TimeoutError:
                continue  # nothing came: it still listens
            except (BrokenPipeError, ConnectionResetError):
                dropped = True
            if dropped:
                break
        assert dropped
        is_fine(server, hook, session, events)


def test_a_registered_peer_that_stalls_in_a_frame_is_closed(serve: Serving, events: Events) -> None:
    """Its session ends with the reason."""
    server = serve(QUICK)
    hook, session = registered(server, events)
    with hook:
        hook.sock.sendall(header(50))
        closed = events.next(Closed)
        assert closed.session == session
        assert "stalled" in closed.reason
        assert closed.alive


def test_a_peer_that_dies_in_the_middle_of_a_frame(serve: Serving, events: Events) -> None:
    """Its connection ends; half a message is no message."""
    server = serve()
    hook, session = registered(server, events)
    with hook:
        with FakeHook.registered(server.path) as other:
            number = events.next(Opened).session
            other.sock.sendall(encode(Committed("n", 1, 1, 1.0, "u", 1.0))[:-3])
        assert events.next(Closed).session == number
        assert not [e for e in events.drain() if isinstance(e, Heard)]
        is_fine(server, hook, session, events)


def test_500_connections_that_say_nothing(serve: Serving, events: Events) -> None:
    """At most so many are kept, the oldest go first, and a hook registers among them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048 <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    server = serve()
    hook, session = registered(server, events)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hook)
        idle = [stack.enter_context(FakeHook(server.path)) for _ in range(250)]
        for peer in (stack.enter_context(FakeHook(server.path)) for _ in range(250)):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.sock.sendall(b"\x00\x00")
        is_fine(server, hook, session, events)
        late = stack.enter_context(FakeHook.registered(server.path))
        is_fine(server, late, events.next(Opened).session, events)
        assert idle[0].hears_the_end()


def test_too_many_connections_are_refused_and_the_old_ones_stay(serve: Serving, events: Events) -> None:
    """Full is full: whoever is registered keeps its place."""
    server = serve(Limits(connections=3))
    with contextlib.ExitStack() as stack:
        hooks = [registered(server, events) for _ in range(3)]
        for hook, _ in hooks:
            stack.enter_context(hook)
        with FakeHook(server.path) as fourth:
            assert fourth.hears_the_end()
        for hook, session in hooks:
            is_fine(server, hook, session, events)


def test_a_peer_that_does_not_read_is_dropped(serve: Serving, events: Events) -> None:
    """What waits for it is capped; the others hear as before."""
    server = serve(Limits(outgoing=600_000))
    hook, session = registered(server, events)
    with hook, FakeHook(server.path, Role.ANSWERER) as deaf:
        deaf.say(Watch(1))
        number = events.next(Watching).session
        for _ in range(20):
            server.send(number, Answer({"x": "y" * (MAX_FRAME // 2)}, last=False))
        assert "unread" in events.next(Closed).reason
        is_fine(server, hook, session, events)


def test_a_peer_that_stops_reading_is_dropped_after_a_while(serve: Serving, events: Events) -> None:
    """Little enough waits for it, but for too long."""
    server = serve(Limits(blocked=0.3))
    hook, session = registered(server, events)
    with hook, FakeHook(server.path, Role.ANSWERER) as deaf:
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.say(Watch(1))
        number = events.next(Watching).session
        for _ in range(4):
            server.send(number, Answer({"x": "y" * (MAX_FRAME // 2)}, last=False))
        assert "read nothing" in events.next(Closed).reason
        is_fine(server, hook, session, events)


def test_a_peer_that_talks_too_much_is_dropped(serve: Serving, events: Events) -> None:
    """Before it fills the queue that the notice has to pass."""
    server = serve(Limits(rate=20, burst=100))
    hook, session = registered(server, events)
    with hook, FakeHook.registered(server.path) as loud:
        number = events.next(Opened).session
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            loud.say(*[Position(i) for i in range(1000)])
        closed = events.next(Closed)
        assert (closed.session, closed.reason) == (number, "more than 20 messages a second, or 100 at once")
        is_fine(server, hook, session, events)


def test_messages_of_a_user_who_sends_too_much_wait_and_nobody_is_dropped(
    serve: Serving, events: Events
) -> None:
    """Each process keeps to its own limit: one that saves must not pay for the others."""
    server = serve(Limits(user_rate=1000, user_burst=100))
    hooks = [registered(server, events) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for hook, _ in hooks:
            stack.enter_context(hook).say(*[Position(i) for i in range(200)])
        for hook, session in hooks:
            is_fine(server, hook, session, events)  # what comes last is heard last
    assert not [e for e in events.kept if isinstance(e, Closed)]


def test_questions_of_a_user_leave_room_for_its_training_processes(serve: Serving, events: Events) -> None:
    """One too many is answered with the reason."""
    server = serve(Limits(user_rate=0, user_burst=17))
    hook, session = registered(server, events)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hook)
        asking = [stack.enter_context(FakeHook(server.path, Role.ANSWERER)) for _ in range(30)]
        for each in asking:
            each.say(Ask("status"))
        for each in asking[1:]:
            assert each.hear(Refused).reason == TOO_OFTEN
        is_fine(server, hook, session, events)
        late, number = registered(server, events)
        is_fine(server, stack.enter_context(late), number, events)
    assert len([e for e in events.drain() if isinstance(e, StatusAsked)]) == 1


def test_as_many_processes_as_a_user_may_have_register_at_once(serve: Serving, events: Events) -> None:
    server = serve(Limits(user_rate=0, user_burst=100, per_user=24))
    with contextlib.ExitStack() as stack:
        for _ in range(24):
            stack.enter_context(FakeHook.registered(server.path))
        assert not [e for e in events.drain() if isinstance(e, Closed)]
        with FakeHook(server.path) as one_more:
            assert one_more.hears_the_end()


def test_a_process_that_lost_its_socket_comes_back_whatever_its_user_has_sent(
    serve: Serving, events: Events
) -> None:
    """A question of its user gives way."""
    server = serve(Limits(user_rate=0, per_user=2))
    with registered(server, events)[0]:
        pass
    assert events.next(Closed).alive
    with FakeHook(server.path, Role.ANSWERER) as first, FakeHook(server.path, Role.ANSWERER) as second:
        for each in (first, second):
            each.say(Watch(1))
            events.next(Watching)
        hook, session = registered(server, events)
        with hook:
            assert first.hears_the_end()
            is_fine(server, hook, session, events)


def test_long_texts_of_a_peer_are_cut(serve: Serving, events: Events) -> None:
    """The agent keeps some for as long as the peer lives, and there may be hundreds of peers."""
    hook, session = registered(serve(), events)
    with hook:
        hook.say(Position(1, detail="x" * 100_000, metrics={f"m{i}": "y" * 1000 for i in range(100)}))
        message = events.next(Heard, lambda e: e.session == session).message
    assert isinstance(message, Position)
    assert (message.step, len(message.detail), len(message.metrics)) == (1, 2000, 64)
    assert {len(each) for each in message.metrics.values()} == {200}


def test_lost_processes_of_one_user_leave_room_for_those_of_others() -> None:
    """One of the user with the most is given up."""
    gone = list[int]()
    with selectors.DefaultSelector() as selector:
        followed = DisconnectedPeers(selector, 3, lambda number, _: gone.append(number))
        for number, uid in enumerate((1, 2, 2, 2, 3)):
            followed.add(number, 100 + number, os.eventfd(0), uid)
        followed.close()
    assert gone == [1, 2]


def test_a_peer_that_sends_descriptors_is_dropped(serve: Serving, events: Events) -> None:
    """They are closed by the kernel; nothing here ever opens one that a peer chose."""
    server = serve()
    before = len(os.listdir("/proc/self/fd"))
    with FakeHook(server.path) as bad:
        socket.send_fds(bad.sock, [b"\x00"], [0, 1, 2])
        assert bad.hears_the_end()
    assert len(os.listdir("/proc/self/fd")) <= before
