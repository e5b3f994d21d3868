"""The check of the agents on this machine: this user's runs, and the machine's service if this user may ask it."""

from __future__ import annotations

import grp
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spotguard.agent.config.options import Options
from spotguard.agent.ipc import control
from spotguard.agent.ipc.paths import SERVICE_SOCKET, path_of

from ..finding import Finding, FindingState, fails, ok, warning
from .cloud import PASSES
from .window import Counted

_RESTART_SERVICE = "systemctl status spotguard-agent, and start it again; meanwhile each run looks for itself"
_NOBODY = (
    "a notice now would end the command unsaved: wait until it has registered, or see that its script calls "
    "spotguard.register"
)
_UNATTACHED = (
    "a notice now would end the command unsaved: wait until its Trainer trains, or change the script as "
    "docs/how-to/training-script.md shows"
)
_RESTART_RUN = (
    "this run is guarded by nobody: look whether it is stopped (ps), and start it again; it resumes from its newest "
    "checkpoint"
)


@dataclass(frozen=True, slots=True)
class Agents:
    findings: tuple[Finding, ...]
    #: Every training process of the selected runs that is registered here, as in `status --json`; each once.
    sessions: tuple[Mapping[str, Any], ...]
    #: The ids of the selected runs whose agents answer.
    running: tuple[str, ...] = ()
    #: The shortest window that one of these runs counts on, and its reserve.
    counted: Counted | None = None
    #: Training processes of runs that were not selected.
    others: tuple[Mapping[str, Any], ...] = ()
    #: Whether all sources of the machine's service see, and a run with these options relies on the service.
    sees: bool = False


def ask(
    options: Options, env: Mapping[str, str], uid: int, *, run_id: str = "", service: Path = SERVICE_SOCKET
) -> Agents:
    """Ask each agent on this machine for its status.

    Args:
        options: the options of the visit.
        env: the environment that names the directory of sockets.
        uid: the user who asks.
        run_id: the run to check; "" for all.
        service: socket of the machine's service.
    """
    findings: list[Finding] = []
    given = [Path(options.socket).absolute()] if options.socket else []
    try:
        sockets = control.find_sockets(env, uid, service)
    except control.AgentError as error:
        if not given:
            what, _, advice = str(error).rpartition(": ")
            return Agents((fails("agent", what, advice),), ())
        # The directory belongs to another user. `run` does not need it, because a socket was passed.
        sockets = control.machine_sockets(service)
    # The socket that the selected run has, or would have.
    place = path_of(options.socket, run_id, env, uid).absolute() if given or run_id else None
    asked = {path: body for path in dict.fromkeys([*given, *sockets]) if (body := _status(path, service))}
    meant = {
        path: body
        for path, body in asked.items()
        if path == service or (_is_run(run_id, place, path, body) and (not given or path in given))
    }
    others = [body for path, body in asked.items() if path not in meant and "error" not in body]
    bodies = list(meant.values())
    findings += [each for body in bodies for each in of(body, service)]
    if place is not None and place in asked:
        findings += _held(run_id, place, asked[place])
    findings += _shut_out(service)
    if not findings:
        where = f"at {options.socket}" if options.socket else f"for run {run_id}" if others else "here"
        there = ", ".join(str(body["run_id"]) for body in others)
        beside_it = f", for others one does: {there}" if others else ""
        findings.append(
            ok(
                "agent",
                f"none runs {where} yet{beside_it}; `spotguard run` brings its own",
                "start the job: spotguard run",
            )
        )
    relayed = options.provider != "none" and not options.metadata_endpoint  # as `agent.app` decides
    running = [body for body in bodies if "error" not in body and not body["service"]]
    return Agents(
        tuple(findings),
        _sessions(bodies, lambda each: not run_id or each == run_id),
        tuple(str(body["run_id"]) for body in running),
        _counted(running),
        _sessions([*bodies, *others], lambda each: bool(run_id) and each != run_id),
        relayed and service in meant and _sees(meant[service]),
    )


def _counted(running: Sequence[Mapping[str, Any]]) -> Counted | None:
    counted = [Counted(str(body["run_id"]), float(body["window"]), body["reserve"]) for body in running]
    return min(counted, key=lambda each: each.seconds, default=None)


def _sees(service: Mapping[str, Any]) -> bool:
    sources = service.get("sources", ())
    return bool(sources) and all(source["sight"] == "seeing" for source in sources)


def instead(own: Finding) -> Finding:
    """Return the doctor's own failed poll as ok, if the machine's service sees.

    The doctor may not reach what the service reaches (a pod's network is not its node's), but that hides nothing from a run.
    """
    if own.check != "notices" or own.facts.get("sight", "seeing") == "seeing":
        return own
    found = f"seen by the machine's service, which runs here ask; from here {own.found}"
    return replace(own, state=FindingState.OK, found=found, advice="")


def _is_run(run_id: str, place: Path | None, path: Path, body: Mapping[str, Any]) -> bool:
    """Report whether this is the selected run, or a service whose socket was named.

    An agent that does not answer is known by its socket: a run's own, or its unit's (`spotguard bootstrap`).
    """
    if not run_id or control.guards(run_id, path, body):
        return True
    return path == place if "error" in body else bool(body["service"])


def _held(run_id: str, place: Path, body: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a failure if another run has the socket that this run would have."""
    if not _is_run(run_id, place, place, body):
        facts = {name: body[name] for name in ("socket", "pid", "run_id")}
        found = f"run {body['run_id']} answers at {place}, and not run {run_id}"
        advice = f"pass --run-id {body['run_id']} for that one; beside it {run_id} needs another --socket"
        yield fails("agent", found, advice, **facts, sessions=len(body["sessions"]))


def _status(path: Path, service: Path) -> dict[str, Any] | None:
    try:
        return control.status(path)
    except control.DeadSocketError:
        # A dead run's socket guards nothing, and `run` replaces it. A dead service's socket means a missing service.
        return {"socket": str(path), "error": "nobody listens there"} if path == service else None
    except control.AgentError as error:
        return {"socket": str(path), "error": str(error)}


def of(body: Mapping[str, Any], service: Path = SERVICE_SOCKET) -> Iterator[Finding]:
    if "error" in body:
        advice = _RESTART_SERVICE if Path(str(body["socket"])) == service else _RESTART_RUN
        yield fails("agent", f"{body['socket']}: {body['error']}", advice, socket=body["socket"])
        return
    who = "the machine's service" if body["service"] else f"run {body['run_id']}"
    count = len(body["sessions"])
    names = ", ".join(sorted({each["name"] for each in body["sessions"]}))
    ranks = f"{count} training process{'es' * (count > 1)} ({names})" if count else "no training process"
    facts: dict[str, Any] = {
        "socket": body["socket"],
        "pid": body["pid"],
        "run_id": body["run_id"],
        "sessions": count,
    }
    blind: dict[
        tuple[str, str], Mapping[str, Any]
    ] = {}  # a problem that several sources share is one finding
    for source in body["sources"]:
        if source["sight"] != "seeing":
            blind.setdefault((source["reason"], source["advice"]), source)
    if body["notice"] is not None and not body["notice"]["drill"]:
        yield fails("agent", f"{who} handles a notice NOW", "this machine goes: use another", **facts)
    for source in blind.values():
        found = (
            f"{who} is {source['sight'].upper()} ({source['reason']}): {source['name']}: {source['detail']}"
        )
        how = warning if source["reason"] in PASSES else fails
        yield how("agent", found, source["advice"], **facts)
    if not blind:
        watched = "watching" if body["sources"] else "watching no cloud"
        found = f"{who} (pid {body['pid']}), {watched}, {ranks}"
        if why := body["unattached"]:
            yield warning("agent", f"{found}: --attach has attached nothing: {why}", _UNATTACHED, **facts)
        elif count or body["service"]:
            yield ok("agent", found, **facts)
        else:
            yield warning("agent", found, _NOBODY, **facts)


def _shut_out(service: Path) -> Iterator[Finding]:
    """Yield a warning if there is a service that this user may not ask."""
    try:
        os.stat(service)
    except PermissionError:
        group = _group(service.parent)
        yield warning(
            "agent",
            f"a service watches here ({service}), and you are not in its group, {group}",
            f"sudo usermod -aG {group} $USER, and log in again; until then each run looks for itself",
        )
    except OSError:  # no service is here
        return


def _group(folder: Path) -> str:
    gid = os.stat(folder).st_gid
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:  # a container has another list of groups
        return str(gid)


def _sessions(
    bodies: Sequence[Mapping[str, Any]], meant: Callable[[str], bool]
) -> tuple[Mapping[str, Any], ...]:
    """Return each selected session once: its run and the machine's service may both know it."""
    sessions: dict[tuple[int, str], Mapping[str, Any]] = {}
    for body in bodies:
        for each in body.get("sessions", ()):
            if meant(each["run_id"]):
                sessions.setdefault((each["pid"], each["store"]), each)
    return tuple(sessions.values())
