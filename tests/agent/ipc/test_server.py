"""The socket server over real Unix sockets: whatever one peer does, nothing but that peer is affected (law 10)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.agent.events import Asked, Closed, Heard, Opened, StatusAsked, Watching
from spotguard.agent.ipc.process_stat import is_exiting
from spotguard.agent.ipc.server import Server
from spotguard.hooks.ipc.protocol import (
    Answer,
    Ask,
    Committed,
    Position,
    Preempt,
    Refused,
    Register,
    Role,
    Unattached,
    Watch,
    Welcome,
)
from spotguard.providers.clock import SystemClock
from tests.fakes.hook import FakeHook
from tests.fakes.serving import QUICK, Events, Serving, is_fine, registered

# --- the way it should be ---


def test_a_hook_registers_speaks_and_is_spoken_to(serve: Serving, events: Events) -> None:
    """Welcome, Opened with the kernel's own pid and uid, Heard in order, Closed."""
    server = serve()
    with FakeHook(server.path) as hook:
        hook.say(Register(1, "run", "train.py"))  # a lie about the pid changes nothing
        welcome = hook.hear(Welcome)
        opened = events.next(Opened)
        assert (opened.session, opened.pid, opened.uid) == (welcome.session, os.getpid(), os.geteuid())
        hook.say(Position(1), Position(2))
        assert [events.next(Heard).message for _ in range(2)] == [Position(1), Position(2)]
        is_fine(server, hook, opened.session, events)
    closed = events.next(Closed)
    assert (closed.session, closed.alive) == (opened.session, True)


def test_a_welcome_says_that_a_notice_is_pending(serve: Serving, events: Events) -> None:
    """Whoever reads it waits for the notice instead of training on a machine that goes."""
    server = serve()
    for departing in (False, True):
        server.departing = departing
        with FakeHook(server.path) as hook:
            hook.say(Register(1, "run", "train.py"))
            assert hook.hear(Welcome).notice is departing


def test_questions_become_events_and_the_last_answer_ends_the_call(serve: Serving, events: Events) -> None:
    """`status` and `drill` ask once, then listen."""
    server = serve()
    with FakeHook(server.path, Role.ANSWERER) as asker:
        asker.say(Ask("status"))
        asked = events.next(StatusAsked)
        assert asked.uid == os.geteuid()
        server.send(asked.session, Answer({"a": 1}, last=False))
        server.send(asked.session, Answer({"b": 2}))
        assert [asker.hear(Answer).body for _ in range(2)] == [{"a": 1}, {"b": 2}]
        assert asker.hears_the_end()
    with FakeHook(server.path, Role.ANSWERER) as asker:
        asker.say(Ask("drill", window=12.0, preempt=True))
        drill = events.next(Asked)
        assert (drill.window, drill.preempt) == (12.0, True)


def test_a_watching_agent_is_announced(serve: Serving, events: Events) -> None:
    """It only listens from then on."""
    server = serve()
    with FakeHook(server.path, Role.ANSWERER) as poller:
        poller.say(Watch(os.getpid()))
        assert events.next(Watching).session == 1


def test_a_process_that_is_not_attached_tells_why_and_is_no_session(serve: Serving, events: Events) -> None:
    server = serve()
    with FakeHook(server.path) as hook:
        hook.say(Unattached("nothing trains"))
        assert events.next(Heard).message == Unattached("nothing trains")
        assert hook.hears_the_end()
    assert not [event for event in events.drain() if not isinstance(event, Closed)]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Register(1, "run", "x", protocol=99), "protocol 1, you speak 99: install one spotguard for both"),
        (Ask("status", protocol=0), "you speak 0"),
        (Watch(1, protocol=3), "you speak 3"),
        (Ask("reboot"), "unknown question 'reboot'"),
        (Ask("drill", window=-1.0), "drill of -1 s"),
        (Ask("drill", window=1e9), "up to 604800 (a week)"),
    ],
)
def test_an_unserved_request_is_refused_with_the_reason(
    serve: Serving, events: Events, said: Register | Ask | Watch, reason: str
) -> None:
    """And the connection ends; no session has begun."""
    server = serve()
    role = Role.AGENT_NEW if isinstance(said, Register) else Role.ANSWERER
    with FakeHook(server.path, role) as hook:
        hook.say(said)
        assert reason in hook.hear(Refused).reason
        assert hook.hears_the_end()
    assert not [event for event in events.drain() if not isinstance(event, Closed)]


# --- processes ---

CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}]
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
hook = FakeHook.registered(Path({path!r}))
{body}
"""


def child(server: Server, body: str) -> subprocess.Popen[bytes]:
    code = CHILD.format(root=str(Path(__file__).parents[3]), path=str(server.path), body=body)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_forked_child_on_the_inherited_socket_is_not_heard(serve: Serving, events: Events) -> None:
    """A session's messages count only from the process that registered it; the parent's still do."""
    server = serve()
    with FakeHook.registered(server.path) as hook:
        session = events.next(Opened).session
        pid = os.fork()
        if pid == 0:
            try:
                hook.say(Committed("n", 666, 1, 1.0, "forged", 1.0))
                hook.sock.sendall(b"\x40\x00\x00\x00")  # nor does its garbage harm the parent
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        is_fine(server, hook, session, events)
        assert not [e for e in events.drain() if isinstance(e, Heard) and isinstance(e.message, Committed)]


def test_a_death_is_seen_although_a_child_holds_the_socket(serve: Serving, events: Events) -> None:
    """A data loader's worker outlives its trainer: the trainer's session ends all the same, last words first."""
    server = serve()
    body = """
if os.fork() == 0:
    os.read(0, 1); os._exit(0)  # holds the socket, and ends when the test closes its pipe
hook.say(Position(41), Position(42))
os.kill(os.getpid(), 9)
"""
    with child(server, body) as process:
        opened = events.next(Opened)
        assert opened.pid == process.pid
        closed = events.next(Closed)
        assert (closed.session, closed.alive) == (opened.session, False)
        assert [e.message for e in events.drain() if isinstance(e, Heard)] == [Position(41), Position(42)]


def test_a_process_that_lost_its_socket_is_followed_to_its_end(serve: Serving, events: Events) -> None:
    """First: closed, alive. Then, when it dies: closed."""
    server = serve()
    with child(server, "hook.close(); sys.stdin.read()") as process:
        session = events.next(Opened).session
        first = events.next(Closed)
        assert (first.session, first.alive) == (session, True)
        assert process.stdin is not None
        process.stdin.close()
        second = events.next(Closed)
        assert (second.session, second.alive) == (session, False)


NOBODY = 65534


def as_nobody(path: Path) -> str:
    """What another uid gets for connecting: "refused", or what it heard."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"?"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with FakeHook(path) as hook:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    hook.say(Register(1, "run", "x"))
                hook.hears_the_end()
                said = repr([type(m).__name__ for m in hook.heard]).encode()
        except PermissionError:
            said = b"no permission"
        except Exception as error:  # noqa: BLE001 (whatever it is, the parent is told)
            said = repr(error).encode()
        finally:
            os.write(writing, said)
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    heard = os.read(reading, 1000).decode()
    os.close(reading)
    return heard


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another uid can only be tried by root")


@needs_root
def test_another_uid_is_kept_out_by_the_folder(serve: Serving, events: Events) -> None:
    """0700."""
    server = serve()
    Path(os.environ["XDG_RUNTIME_DIR"]).chmod(0o755)
    assert as_nobody(server.path) == "no permission"
    assert server.path.parent.stat().st_mode & 0o777 == 0o700
    assert server.path.stat().st_mode & 0o777 == 0o600


@needs_root
def test_another_uid_that_reaches_the_socket_is_closed_without_a_word(serve: Serving, events: Events) -> None:
    """Modes can be changed behind our back; the kernel's credentials cannot."""
    server = serve()
    Path(os.environ["XDG_RUNTIME_DIR"]).chmod(0o755)
    server.path.parent.chmod(0o755)
    server.path.chmod(0o666)
    hook, session = registered(server, events)
    with hook:
        assert as_nobody(server.path) == "[]"
        is_fine(server, hook, session, events)
    assert not [e for e in events.drain() if isinstance(e, Opened)]


@needs_root
def test_a_service_lets_other_uids_in(serve: Serving, events: Events) -> None:
    """Whoever could open the folder belongs: its group is the list."""
    server = serve(QUICK, service=True)
    assert server.path.stat().st_mode & 0o777 == 0o660
    Path(os.environ["XDG_RUNTIME_DIR"]).chmod(0o755)
    server.path.parent.chmod(0o755)
    server.path.chmod(0o666)
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(NOBODY)
            FakeHook.registered(server.path)
        finally:
            os._exit(0)
    opened = events.next(Opened)
    os.waitpid(pid, 0)
    assert (opened.uid, opened.pid) == (NOBODY, pid)


def test_stopping_says_what_was_to_be_said(serve: Serving, events: Events, folder: Path) -> None:
    """The last Leave, the last Answer: sent before the socket goes; then the path is free."""
    server = Server(folder / "b.sock", events.queue.put, SystemClock())
    server.start()
    hook, session = registered(server, events)
    with hook:
        server.send(session, Preempt("last", 1.0, 0.5, "terminate", "test"))
        server.close()
        assert hook.hear(Preempt).id == "last"
        assert hook.hears_the_end()
    assert not (folder / "b.sock").exists()


def test_a_killed_process_counts_as_exiting_before_it_is_reaped() -> None:
    """Its place is free for who is started after it: a launcher starts workers anew where it has just ended others."""
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_exiting(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and still there
        assert is_exiting(process.pid)
    assert is_exiting(process.pid)
