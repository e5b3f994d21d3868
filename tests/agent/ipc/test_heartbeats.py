"""Heartbeats over real sockets of this machine."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from spotguard.agent.events import Event, MachineSeen
from spotguard.agent.ipc import heartbeats
from spotguard.agent.ipc.heartbeats import Heartbeats
from spotguard.agent.ipc.peer_liveness import code_of
from spotguard.providers.clock import SystemClock

RUN = (1000, "job")
RUNS = frozenset({RUN})
EVERY = 0.02
PATIENCE = 100.0


class Agent:
    """The heartbeats of one agent, and what they post."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.heartbeats = Heartbeats(self.events.put, SystemClock(), EVERY)

    def place(self, run: tuple[int, str] = RUN, before: str = "") -> str:
        return f"127.0.0.1 {self.heartbeats.open(run, before)}"

    def watch(self, place: str) -> None:
        self.heartbeats.watch(RUN, {place: "other"})

    def next(self) -> MachineSeen:
        event = self.events.get(timeout=PATIENCE)
        assert isinstance(event, MachineSeen)
        return event


@pytest.fixture
def agent() -> Iterator[Callable[[], Agent]]:
    made: list[Agent] = []

    def make() -> Agent:
        made.append(Agent())
        return made[-1]

    yield make
    for each in made:
        each.heartbeats.close()


class Relay:
    """A network between two agents: it passes bytes on, until it is cut."""

    def __init__(self, to: str) -> None:
        _, port, self.secret = to.split()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(port)

    @property
    def place(self) -> str:
        return f"127.0.0.1 {self.listener.getsockname()[1]} {self.secret}"

    def carry(self, frames: int) -> None:
        """Pass on one connection's next questions and answers, and nothing after them. The connection stays."""
        self.near, _ = self.listener.accept()
        self.far = socket.create_connection(("127.0.0.1", self.port))
        for _ in range(frames):
            self.far.sendall(self.near.recv(24, socket.MSG_WAITALL))
            self.near.sendall(self.far.recv(24, socket.MSG_WAITALL))

    def close(self) -> None:
        for each in (self.listener, self.near, self.far):
            each.close()


def test_an_agent_hears_another_one_and_its_end(agent: Callable[[], Agent]) -> None:
    one, other = agent(), agent()
    one.watch(other.place())
    assert one.next() == MachineSeen(RUNS, "other")
    other.heartbeats.close()
    assert one.next() == MachineSeen(RUNS, "other", ended=True)


def test_silence_is_told_and_so_is_its_end(agent: Callable[[], Agent]) -> None:
    one, other = agent(), agent()
    relay = Relay(other.place())
    try:
        one.watch(relay.place)
        relay.carry(3)
        assert one.next() == MachineSeen(RUNS, "other")
        silent = one.next()
        assert silent.silent_since is not None
        assert not silent.ended
        assert one.events.empty()
        for _ in range(2):  # the network is back: it carries what has waited
            relay.far.sendall(relay.near.recv(24, socket.MSG_WAITALL))
            relay.near.sendall(relay.far.recv(24, socket.MSG_WAITALL))
        assert one.next() == MachineSeen(RUNS, "other")
    finally:
        relay.close()


def test_a_stranger_is_hung_up_on(agent: Callable[[], Agent]) -> None:
    """It does not know the secret, and learns nothing."""
    _, port, _ = agent().place().split()
    with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE) as stranger:
        stranger.sendall(bytes(24))
        assert stranger.recv(1) == b""


def test_silent_strangers_are_hung_up_on_although_nothing_is_watched(
    agent: Callable[[], Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a descriptor, of which there are 512."""
    monkeypatch.setattr(heartbeats, "_HELLO", 0.0)
    port = int(agent().place().split()[1])
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as stranger:
        assert stranger.recv(1) == b""


def test_machines_that_one_user_names_leave_room_for_another_users(agent: Callable[[], Agent]) -> None:
    """Each is a connection of this agent's. Here all are refused."""
    one, other = agent(), agent()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for run in range(5):
        names = {f"127.0.0.1 {port} s{run}x{number}": f"n{number}" for number in range(64)}
        one.heartbeats.watch((2000, f"job-{run}"), names)
    one.watch(other.place())
    assert one.next() == MachineSeen(RUNS, "other")


def test_an_agent_without_a_thread_for_heartbeats_has_none(
    agent: Callable[[], Agent], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ranks are served all the same, and the next one asks again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = agent().heartbeats
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert one.open(RUN) == ""
        one.watch(RUN, {"127.0.0.1 5000 abc": "other"})
    assert "no heartbeats with other machines: can't start new thread" in caplog.text
    assert one.open(RUN) != ""


def test_an_answer_without_the_secret_is_none(agent: Callable[[], Agent]) -> None:
    """Another program has the port of an agent that is gone: nobody takes it for the machine."""
    one = agent()
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        one.watch(f"127.0.0.1 {impostor.getsockname()[1]} 0123456789abcdef")
        near, _ = impostor.accept()
        with near:
            for _ in range(5):
                near.sendall(near.recv(24, socket.MSG_WAITALL))  # the question again, as an answer
        assert one.events.empty()


def test_an_answer_that_is_repeated_is_none(agent: Callable[[], Agent]) -> None:
    """A listener on the network who has recorded one cannot have the machine taken for alive."""
    one, other = agent(), agent()
    relay = Relay(other.place())
    try:
        one.watch(relay.place)
        relay.near, _ = relay.listener.accept()
        relay.far = socket.create_connection(("127.0.0.1", relay.port))
        relay.far.sendall(relay.near.recv(24, socket.MSG_WAITALL))
        recorded = relay.far.recv(24, socket.MSG_WAITALL)
        relay.near.sendall(recorded)
        assert one.next() == MachineSeen(RUNS, "other")
        for _ in range(5):
            relay.near.recv(24, socket.MSG_WAITALL)
            relay.near.sendall(recorded)
        assert one.next().silent_since is not None
    finally:
        relay.close()


def test_a_connection_that_is_cut_between_is_made_anew(agent: Callable[[], Agent]) -> None:
    """A middlebox closes it: the agent has not ended."""
    one, other = agent(), agent()
    relay = Relay(other.place())
    try:
        one.watch(relay.place)
        relay.carry(2)
        assert one.next() == MachineSeen(RUNS, "other")
        relay.near.close()
        relay.far.close()
        relay.carry(2)
        assert one.events.empty() or one.next().silent_since is not None
    finally:
        relay.close()


def test_a_run_that_is_over_is_watched_no_longer(agent: Callable[[], Agent]) -> None:
    one = agent()
    with socket.create_server(("127.0.0.1", 0)) as other:
        one.watch(f"127.0.0.1 {other.getsockname()[1]} 0123456789abcdef")
        near, _ = other.accept()
        one.heartbeats.over(RUN)
        near.settimeout(PATIENCE)
        while near.recv(4096):
            pass
        near.close()


@pytest.mark.parametrize("machines", [{}, {"10.0.0.2 4242 0123456789abcdef": "node3"}])
def test_a_run_that_watches_no_machine_is_heard_on(
    machines: dict[str, str], agent: Callable[[], Agent]
) -> None:
    """None of the places that its ranks name may be one. Also if its last rank left while this one registered."""
    one, other = agent(), agent()
    place = other.place()
    other.heartbeats.watch(RUN, machines)
    assert other.place() == place
    other.heartbeats.over(RUN)
    other.heartbeats.watch(RUN, machines)
    assert other.place() == place
    one.watch(place)
    assert one.next() == MachineSeen(RUNS, "other")


def test_the_runs_that_have_a_secret_are_limited(
    agent: Callable[[], Agent], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("spotguard.agent.ipc.heartbeats._RUNS", 2)
    monkeypatch.setattr("spotguard.agent.ipc.heartbeats._ENDED", 1)
    heartbeats = agent().heartbeats
    runs = [(1000, name) for name in ("a", "b", "c")]
    assert [bool(heartbeats.open(run)) for run in runs] == [True, True, False]
    assert [record.getMessage() for record in caplog.records] == ["no heartbeats for run c: 2 runs have them"]
    for run in runs:
        heartbeats.over(run)
    assert heartbeats.open(runs[2])
    assert [*heartbeats._ended] == [runs[1]]


def test_nothing_listens_before_it_is_asked_for(agent: Callable[[], Agent]) -> None:
    assert agent().heartbeats._listener is None


def test_an_agent_that_starts_again_is_heard_at_its_place(
    agent: Callable[[], Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks bring it the port and the secret that the other machines have."""
    monkeypatch.setattr("spotguard.agent.ipc.heartbeats._BACK", EVERY)
    one, other, again = agent(), agent(), agent()
    place = other.place()
    one.watch(place)
    assert one.next() == MachineSeen(RUNS, "other")
    other.heartbeats.close()
    assert one.next() == MachineSeen(RUNS, "other", ended=True)
    assert again.place(before=place.removeprefix("127.0.0.1 ")) == place
    assert one.next() == MachineSeen(RUNS, "other")


@pytest.mark.parametrize("reset", [False, True])
def test_an_agent_that_starts_again_and_does_not_know_the_run_yet_is_not_silent(
    reset: bool, agent: Callable[[], Agent]
) -> None:
    """Another run's rank has registered there first. The agent hangs up on who has a secret that it does not know."""
    one, other = agent(), agent()
    one.heartbeats._every = 0.5  # a loaded machine may take long to accept
    relay = Relay(other.place())
    try:
        one.watch(relay.place)
        relay.carry(2)
        assert one.next() == MachineSeen(RUNS, "other")
        relay.near.close()
        relay.near, _ = relay.listener.accept()
        if reset:  # bytes that were not read
            relay.near.recv(1, socket.MSG_PEEK)
        else:
            relay.near.recv(24, socket.MSG_WAITALL)
        relay.near.close()
        assert one.next() == MachineSeen(RUNS, "other", ended=True)
        assert one.events.empty()
    finally:
        relay.close()


def test_a_place_that_another_program_has_is_left_and_its_secret_kept(agent: Callable[[], Agent]) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        _, found, secret = agent().place(before=f"{port} 0123456789abcdef").split()
    assert secret == "0123456789abcdef"
    assert int(found) != port


def test_a_run_whose_port_another_one_has_decided_is_named(
    agent: Callable[[], Agent], caplog: pytest.LogCaptureFixture
) -> None:
    """The agent started again, and listens at one port. The run's other machines hear it no more."""
    again = agent()
    _, found, _ = again.place((1000, "new")).split()
    for _ in range(2):  # its ranks, one by one
        assert again.place(before="4242 0123456789abcdef") == f"127.0.0.1 {found} 0123456789abcdef"
    text = "no heartbeats with the machines that know port 4242 for run job: this agent listens at port "
    assert [record.getMessage() for record in caplog.records] == [f"{text}{found}"]


@pytest.mark.parametrize(
    "before", ["80 0123456789abcdef", "99999 0123456789abcdef", "4242", "4242 a b", "\x00"]
)
def test_no_process_has_the_agent_listen_where_it_should_not(before: str, agent: Callable[[], Agent]) -> None:
    _, port, secret = agent().place(before=before).split()
    assert int(port) not in (80, 4242)
    assert secret


def test_each_run_has_a_secret_of_its_own(agent: Callable[[], Agent]) -> None:
    """A run that is over takes its secret with it; the other one's is heard on."""
    one, other = agent(), agent()
    places = [other.place((1000, run)) for run in ("job", "second")]
    assert len({*places}) == 2
    assert places == [other.place((1000, run), "4242 anothersecret") for run in ("job", "second")]
    other.heartbeats.over((1000, "second"))
    one.watch(places[0])
    assert one.next() == MachineSeen(RUNS, "other")
    _, port, secret = places[1].split()
    with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE) as late:
        number = bytes(8)
        late.sendall(number + code_of(secret, b"ask", number))
        assert late.recv(1) == b""
    assert other.place((1000, "second")) not in places
