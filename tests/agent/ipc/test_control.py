"""Which agent is meant, and which are shown: runs and services of one user, living and dead."""

from __future__ import annotations

import os
import queue
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, Signalled
from spotguard.agent.ipc import control
from spotguard.agent.ipc.server import Server
from spotguard.agent.loop import Agent
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.hooks.ipc.protocol import Answer, encode
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError

#: Starts an agent that answers at `<name>.sock` below our runtime folder, or where it is said.
Start = Callable[..., Path]


@pytest.fixture
def env(folder: Path) -> dict[str, str]:
    (folder / "spotguard").mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(folder)}


@pytest.fixture
def start(folder: Path, env: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as ending:

        def make(name: str, *, service: bool = False, at: Path | None = None) -> Path:
            path = at or (folder if service else folder / "spotguard") / f"{name}.sock"
            events: queue.SimpleQueue[Event] = queue.SimpleQueue()
            clock = SystemClock()
            server = Server(path, events.put, clock, service=service)
            server.start()
            facts = AgentFacts(name, os.getpid(), str(path), service, clock.monotonic())
            agent = Agent(Machine(Policy(command=False)), server, clock, events, facts)
            thread = threading.Thread(target=agent.run, name=f"agent {name}")
            thread.start()
            ending.callback(server.close)
            ending.callback(thread.join)
            ending.callback(events.put, Signalled(signal.SIGTERM))
            return path

        yield make


def dead(path: Path) -> None:
    """What a killed agent leaves behind."""
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(os.fspath(path))


def test_a_run_is_meant_rather_than_the_service_beside_it(
    start: Start, env: dict[str, str], folder: Path
) -> None:
    """A drill is for what trains; the service is meant where nothing else is there."""
    service = start("agent", service=True)
    assert control.choose(None, None, env, os.geteuid(), service) == service
    run = start("gpt")
    assert control.choose(None, None, env, os.geteuid(), service) == run


def test_several_runs_beside_a_service_are_told_apart(start: Start, env: dict[str, str]) -> None:
    """Each word of the advice can be said: a service has no run id."""
    service = start("agent", service=True)
    start("gpt")
    start("vit")
    with pytest.raises(UsageError) as caught:
        control.choose(None, None, env, os.geteuid(), service)
    said = str(caught.value)
    assert said.endswith(
        f"pass --run-id with one of gpt, vit; for the service agent pass --socket {service} [SG106]"
    )


# --- which run is meant ---


@pytest.fixture
def unit(folder: Path) -> Callable[[str], Path]:
    """Where the unit of `spotguard bootstrap` has the socket of this run: each in a folder of its own, all of one name."""

    def place(run_id: str) -> Path:
        own = folder / f"spotguard-run-{run_id}"
        own.mkdir(mode=0o700)
        return own / "run.sock"

    return place


def chosen(run_id: str | None, env: dict[str, str], folder: Path) -> Path:
    """With a machine's service that is not there, beside whose folder those of the units lie."""
    return control.choose(run_id, None, env, os.geteuid(), folder / "service" / "agent.sock")


@pytest.mark.parametrize("units", [True, False])
def test_a_run_is_known_by_its_id_and_not_by_its_socket(
    units: bool, start: Start, env: dict[str, str], folder: Path, unit: Callable[[str], Path]
) -> None:
    """Of units, and with a `--socket` of one's own in the runtime folder. The names that are told can be said."""
    places = [unit(name) if units else folder / "spotguard" / f"my-{name}.sock" for name in ("gpt", "vit")]
    gpt, vit = start("gpt", at=places[0]), start("vit", at=places[1])
    with pytest.raises(
        UsageError, match=r"several runs are guarded here: pass --run-id with one of gpt, vit \[SG106\]$"
    ):
        chosen(None, env, folder)
    assert (chosen("gpt", env, folder), chosen("vit", env, folder)) == (gpt, vit)
    assert chosen("bert", env, folder) == folder / "spotguard" / "bert.sock", "where it would be"


def test_runs_of_one_id_are_told_apart_by_their_sockets(
    start: Start, env: dict[str, str], folder: Path, unit: Callable[[str], Path]
) -> None:
    own, units = start("gpt"), start("gpt", at=unit("gpt"))
    for said in ("gpt", None):
        with pytest.raises(UsageError) as caught:
            chosen(said, env, folder)
        where = f"--socket {own} or --socket {units}"
        assert str(caught.value) == f"several runs here are named gpt: pass {where} [SG106]"


def test_another_run_at_the_socket_of_the_one_that_is_meant_is_not_taken_for_it(
    start: Start, env: dict[str, str], folder: Path
) -> None:
    """A drill to the end would end the wrong job."""
    path = start("vit", at=folder / "spotguard" / "gpt.sock")
    with pytest.raises(control.AgentError, match=f"run vit answers at {path}, and not run gpt"):
        chosen("gpt", env, folder)


def test_a_run_that_is_named_is_found_though_the_folder_cannot_be_listed(
    start: Start,
    env: dict[str, str],
    folder: Path,
    unit: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, units = start("gpt"), start("vit", at=unit("vit"))
    plain = os.listdir

    def closed(path: Path) -> list[str]:  # to who may pass through it only; the suite may run as root
        if path == folder / "spotguard":
            raise PermissionError(13, "Permission denied")
        return plain(path)

    monkeypatch.setattr(os, "listdir", closed)
    assert (chosen("gpt", env, folder), chosen("vit", env, folder)) == (own, units)
    with pytest.raises(control.AgentError, match="set XDG_RUNTIME_DIR"):
        chosen(None, env, folder)


def test_a_unit_s_run_is_found_beside_a_folder_that_is_not_ours(
    start: Start, env: dict[str, str], folder: Path, unit: Callable[[str], Path]
) -> None:
    """Who kept another user's XDG_RUNTIME_DIR may have a unit here. Where nobody has that name, it is said of the default."""
    (folder / "spotguard").rmdir()
    (folder / "spotguard").touch()
    assert chosen("gpt", env, folder) == folder / "spotguard" / "gpt.sock"
    assert start("gpt", at=unit("gpt")) == chosen("gpt", env, folder)


def test_a_unit_s_run_that_does_not_answer_is_known_by_its_folder(
    env: dict[str, str], folder: Path, unit: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for it hears that it is stopped, and not that none is there."""
    monkeypatch.setattr(control, "ANSWERS_IN", 0.2)
    path = unit("gpt")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(os.fspath(path))
        mute.listen()
        assert chosen("gpt", env, folder) == path


# --- living and dead ---


def test_dead_sockets_are_left_out(start: Start, env: dict[str, str], folder: Path) -> None:
    """Nobody is guarded there. One that lives and does not answer is shown."""
    dead(folder / "spotguard" / "killed.sock")
    dead(folder / "killed.sock")
    assert control.statuses(env, os.geteuid(), folder / "killed.sock") == []
    run = start("gpt")
    assert [body["run_id"] for body in control.statuses(env, os.geteuid(), folder / "none")] == ["gpt"]
    assert control.choose(None, None, env, os.geteuid(), folder / "killed.sock") == run


def test_a_folder_that_is_not_ours_is_said(env: dict[str, str], folder: Path) -> None:
    """After `su`, XDG_RUNTIME_DIR is another user's: in one line, and no bug."""
    (folder / "spotguard").rmdir()
    (folder / "spotguard").touch()
    with pytest.raises(control.AgentError, match=r"socket directory .*/spotguard: .*: set XDG_RUNTIME_DIR"):
        control.statuses(env, os.geteuid(), folder / "none")


def test_an_agent_that_lives_and_refuses_is_shown(env: dict[str, str], folder: Path) -> None:
    """It is no dead one: somebody has to look at it."""
    path = folder / "spotguard" / "stuck.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        answering = threading.Thread(target=lambda: listener.accept()[0].close())
        answering.start()
        (body,) = control.statuses(env, os.geteuid(), folder / "none")
        answering.join()
    assert body["socket"] == str(path)
    assert "error" in body


def test_an_agent_that_answers_byte_by_byte_is_given_up(
    env: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte is no new reason to wait."""
    monkeypatch.setattr(control, "ANSWERS_IN", 0.3)
    body = answering(folder, env, first=struct.pack(">I", 60_000), then=b" ")
    assert "stopped answering: timed out" in body["error"]


def test_an_agent_whose_answer_has_no_end_is_given_up(
    env: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_ALL_IN", 0.3)
    body = answering(folder, env, first=b"", then=encode(Answer({"sessions": []}, last=False)))
    assert "does not come to the end of its answer" in body["error"]


def answering(folder: Path, env: dict[str, str], *, first: bytes, then: bytes) -> dict[str, Any]:
    """What is known of an agent that says this, and then that again and again."""
    path, hung_up = folder / "spotguard" / "slow.sock", threading.Event()

    def go_on() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(first)
            while not hung_up.wait(0.01):
                try:
                    peer.sendall(then)
                except OSError:
                    return

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            (body,) = control.statuses(env, os.geteuid(), folder / "none")
        finally:
            hung_up.set()
            thread.join()
    return body
