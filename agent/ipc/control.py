"""The client side of `spotguard status` and `spotguard drill`: it finds the agents here, asks them and returns plain values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...hooks.ipc.protocol import Answer, Ask, Message, Refused
from ...providers.clock import SystemClock
from ...providers.errors import ProtocolError, SpotguardError, UsageError
from .client import AgentClient
from .paths import SERVICE_SOCKET, default_socket, is_socket, runtime_folder

#: Seconds for an answer. An agent answers within a millisecond; a stopped or stuck one is reported.
ANSWERS_IN = 2.0
#: Seconds for all pages of an answer. A page holds a few sessions.
_ALL_IN = 10.0
#: Seconds that a drill may take beyond its window, to deliver the end to every session.
_DRILL_SLACK = 15.0


class AgentError(SpotguardError):
    """An agent could not be asked, or refused."""


class DeadSocketError(AgentError):
    """No agent listens at the socket: the agent was killed and left its socket behind, or there was none."""


def find_sockets(env: Mapping[str, str], uid: int, service: Path = SERVICE_SOCKET) -> list[Path]:
    """Return every socket that this user may ask: those of their own runs, and the machine's.

    Raises:
        AgentError: the directory belongs to another user.
    """
    folder = runtime_folder(env, uid)
    try:
        sockets = sorted(folder / name for name in os.listdir(folder) if name.endswith(".sock"))
    except FileNotFoundError:  # this user has never started a run
        sockets = []
    except OSError as error:
        raise AgentError(
            f"socket directory {folder}: {error.strerror}: set XDG_RUNTIME_DIR to a directory of your own (su and sudo may keep "
            "another user's), or pass --socket PATH [SG104]"
        ) from error
    return sockets + machine_sockets(service)


def machine_sockets(service: Path = SERVICE_SOCKET) -> list[Path]:
    """Return the sockets outside of the users' directories.

    These are the sockets of the units that `spotguard bootstrap` installs, each in its own directory, and the service's. The
    directory of another user's unit is not readable.
    """
    sockets = sorted(service.parent.parent.glob("spotguard-run-*/*.sock"))
    try:
        return [*sockets, service] if is_socket(service) else sockets
    except PermissionError:  # its directory is 0750, and this user, who is not in its group, may not ask it
        return sockets


def status(path: Path) -> dict[str, Any]:
    """Return the status of the agent at `path`, with the sessions of all pages.

    Raises:
        DeadSocketError: there is no agent.
        AgentError: the agent does not answer.
    """
    body: dict[str, Any] = {}
    clock = SystemClock()
    until = clock.monotonic() + _ALL_IN
    for page in _ask(path, Ask("status"), ANSWERS_IN):
        if clock.monotonic() > until:
            raise AgentError(f"the agent at {path} does not come to the end of its answer")
        sessions = [*body.get("sessions", ()), *page.get("sessions", ())]
        body = {**page, **body, "sessions": sessions}
    return body


def statuses(env: Mapping[str, str], uid: int, service: Path = SERVICE_SOCKET) -> list[dict[str, Any]]:
    """Return the status of every agent. For an agent that lives and does not answer: its socket and the error."""
    return [body for _, body in _asked(find_sockets(env, uid, service))]


def _asked(paths: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in paths:
        try:
            yield path, status(path)
        except DeadSocketError:  # a killed agent guards nothing
            continue
        except AgentError as error:
            yield path, {"socket": str(path), "error": str(error)}


def guards(run_id: str, path: Path, body: Mapping[str, Any]) -> bool:
    """Return whether this agent guards that run: by its status, or, if it does not answer, by the directory of its unit."""
    if "error" in body:
        return path.parent.name == f"spotguard-run-{run_id}"
    return not body["service"] and bool(body["run_id"] == run_id)


def choose(
    run_id: str | None, socket: str | None, env: Mapping[str, str], uid: int, service: Path = SERVICE_SOCKET
) -> Path:
    """Return the socket that the user means.

    It is `socket` if given, else the socket of `run_id` if given. Otherwise it is the socket of the only run here, or, if
    there is no run, of the only service.

    Raises:
        UsageError: more than one agent fits.
        AgentError: no agent fits, or another run has the socket of the given run.
    """
    if socket:
        return Path(socket)
    if run_id:
        return _of(run_id, env, uid, service)
    answering = [
        (path, body) for path, body in _asked(find_sockets(env, uid, service)) if "error" not in body
    ]
    runs = [(path, body) for path, body in answering if not body["service"]]
    sockets = [path for path, _ in runs or answering]
    if len(sockets) == 1:
        return sockets[0]
    if not sockets:
        raise AgentError(
            "no spotguard runs here: start one with `spotguard run -- COMMAND`, or pass --socket PATH [SG105]"
        )
    services = _either(path for path, body in answering if body["service"])
    if not runs:
        raise UsageError(f"several service agents run here: pass {services} [SG106]")
    names = sorted({str(body["run_id"]) for _, body in runs})
    if len(names) == 1:
        raise _same_name(names[0], sockets)
    beside = f"; for the service agent pass {services}" if services else ""
    raise UsageError(
        f"several runs are guarded here: pass --run-id with one of {', '.join(names)}{beside} [SG106]"
    )


def _of(run_id: str, env: Mapping[str, str], uid: int, service: Path) -> Path:
    """Return the socket of the agent that guards this run; if no agent does, the run's default socket."""
    place = default_socket(run_id, env, uid)
    try:
        paths = find_sockets(env, uid, service)
    except AgentError:  # a user who may not list the directory may still connect to a socket in it
        paths = [place, *machine_sockets(service)]
    asked = dict(_asked(paths))
    guarding = [path for path, body in asked.items() if guards(run_id, path, body)]
    if len(guarding) > 1:
        raise _same_name(run_id, guarding)
    if guarding:
        return guarding[0]
    at_default = asked.get(place, {})
    if at_default.get("service") is False:  # another run: this run would be in `guarding`
        other = at_default["run_id"]
        raise AgentError(
            f"run {other} answers at {place}, and not run {run_id}: pass --run-id {other} for that one"
        )
    return place


def _same_name(run_id: str, paths: Iterable[Path]) -> UsageError:
    return UsageError(f"several runs here are named {run_id}: pass {_either(paths)} [SG106]")


def _either(paths: Iterable[Path]) -> str:
    return " or ".join(f"--socket {path}" for path in paths)


def drill(path: Path, *, window: float = 30.0, preempt: bool = False) -> Iterator[dict[str, Any]]:
    """Run a drill, and yield each step as it happens; the last one has "outcome".

    Args:
        path: the agent's socket.
        window: seconds of warning.
        preempt: whether the job also ends, as after a real notice.

    Raises:
        AgentError: the agent does not answer, or has nothing to drill.
    """
    for body in _ask(path, Ask("drill", window, preempt), window + _DRILL_SLACK):
        if "error" in body:
            raise AgentError(str(body["error"]))
        yield body


def _ask(path: Path, question: Message, patience: float) -> Iterator[dict[str, Any]]:
    try:
        caller = AgentClient(path, question, ANSWERS_IN)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise DeadSocketError(
            f"no spotguard answers at {path}: {_said(error)}; `spotguard status` shows what runs here"
        ) from error
    except (OSError, ProtocolError) as error:
        raise AgentError(f"no spotguard answers at {path}: {_said(error)}") from error
    try:
        while True:
            message = caller.receive(patience)
            if isinstance(message, Refused):
                raise AgentError(f"the agent at {path} refuses: {message.reason}")
            if not isinstance(message, Answer):
                raise AgentError(f"the agent at {path} ended before it had answered")
            yield message.body
            if message.last:
                return
    except (OSError, ProtocolError) as error:
        raise AgentError(f"the agent at {path} stopped answering: {_said(error)}") from error
    finally:
        caller.close()


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
