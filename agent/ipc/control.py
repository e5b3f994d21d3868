"""The asking side of `spotguard status` and `spotguard drill`: find the agents here, ask, give back plain values."""

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

#: An agent answers within a millisecond; one that is stopped or wedged is reported, not waited for.
ANSWERS_IN = 2.0
#: All of its answer, which has a page for every few sessions, is there by then.
_ALL_IN = 10.0
#: A drill takes its window, and then the time of telling everybody.
_DRILL_SLACK = 15.0


class AgentError(SpotguardError):
    """An agent could not be asked, or did not do what it was asked."""


class DeadSocketError(AgentError):
    """Nobody listens there: the agent was killed, and left its socket behind."""


def find_sockets(env: Mapping[str, str], uid: int, service: Path = SERVICE_SOCKET) -> list[Path]:
    """Every socket that this user may ask: its own runs', and the machine's service.

    Raises:
        AgentError: the folder is somebody else's.
    """
    folder = runtime_folder(env, uid)
    try:
        found = sorted(folder / name for name in os.listdir(folder) if name.endswith(".sock"))
    except FileNotFoundError:  # nothing of ours has ever run
        found = []
    except OSError as error:
        raise AgentError(
            f"socket folder {folder}: {error.strerror}: set XDG_RUNTIME_DIR to a folder of your own (su and sudo may keep "
            "another user's), or say --socket PATH"
        ) from error
    return found + machine_sockets(service)


def machine_sockets(service: Path = SERVICE_SOCKET) -> list[Path]:
    """Those that lie in no user's folder: of the units that `spotguard bootstrap` installs, each in a folder of its own
    (another user's cannot be looked into), and the service's."""
    found = sorted(service.parent.parent.glob("spotguard-run-*/*.sock"))
    try:
        return [*found, service] if is_socket(service) else found
    except PermissionError:  # its folder is 0750, and we are not in its group: then it is not ours to ask
        return found


def status(path: Path) -> dict[str, Any]:
    """What the agent at `path` guards now.

    Raises:
        AgentError: it does not answer; a `DeadSocketError` where there is none.
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
    """The status of every agent; for one that lives and does not answer, its socket and why."""
    return [body for _, body in _asked(find_sockets(env, uid, service))]


def _asked(paths: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in paths:
        try:
            yield path, status(path)
        except DeadSocketError:  # what a killed agent left behind guards nothing
            continue
        except AgentError as error:
            yield path, {"socket": str(path), "error": str(error)}


def guards(run_id: str, path: Path, body: Mapping[str, Any]) -> bool:
    """Whether this is the agent of that run: by what it says, and where it does not answer, by its unit's folder."""
    if "error" in body:
        return path.parent.name == f"spotguard-run-{run_id}"
    return not body["service"] and bool(body["run_id"] == run_id)


def choose(
    run_id: str | None, socket: str | None, env: Mapping[str, str], uid: int, service: Path = SERVICE_SOCKET
) -> Path:
    """The socket that is meant: the one said, else that of the run said or the only one, else that of the only service.

    Raises:
        UsageError: more than one.
        AgentError: none, or another run has the socket of the one that was said.
    """
    if socket:
        return Path(socket)
    if run_id:
        return _of(run_id, env, uid, service)
    answering = [
        (path, body) for path, body in _asked(find_sockets(env, uid, service)) if "error" not in body
    ]
    runs = [(path, body) for path, body in answering if not body["service"]]
    found = [path for path, _ in runs or answering]
    if len(found) == 1:
        return found[0]
    if not found:
        raise AgentError(
            "no spotguard runs here: start one with `spotguard run -- COMMAND`, or say --socket PATH"
        )
    services = _either(path for path, body in answering if body["service"])
    if not runs:
        raise UsageError(f"several services watch here: say {services}")
    names = sorted({str(body["run_id"]) for _, body in runs})
    if len(names) == 1:
        raise _namesakes(names[0], found)
    beside = f"; for the service say {services}" if services else ""
    raise UsageError(f"several runs are guarded here: say --run-id with one of {', '.join(names)}{beside}")


def _of(run_id: str, env: Mapping[str, str], uid: int, service: Path) -> Path:
    """The socket of who says that it guards this run; where nobody does, the one that the run would have."""
    place = default_socket(run_id, env, uid)
    try:
        paths = find_sockets(env, uid, service)
    except AgentError:  # who may not list the folder may pass through it all the same
        paths = [place, *machine_sockets(service)]
    asked = dict(_asked(paths))
    found = [path for path, body in asked.items() if guards(run_id, path, body)]
    if len(found) > 1:
        raise _namesakes(run_id, found)
    if found:
        return found[0]
    there = asked.get(place, {})
    if there.get("service") is False:  # a run: it would have been found if it were the one
        other = there["run_id"]
        raise AgentError(
            f"run {other} answers at {place}, and not run {run_id}: say --run-id {other} to ask that one"
        )
    return place


def _namesakes(run_id: str, paths: Iterable[Path]) -> UsageError:
    return UsageError(f"several runs here are named {run_id}: say {_either(paths)}")


def _either(paths: Iterable[Path]) -> str:
    return " or ".join(f"--socket {path}" for path in paths)


def drill(path: Path, *, window: float = 30.0, preempt: bool = False) -> Iterator[dict[str, Any]]:
    """A rehearsal: gives what happens as it happens, the last with "outcome".

    Raises:
        AgentError: it does not answer, or there is nothing to drill.
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
