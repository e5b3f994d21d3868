"""Who watches on this machine already: runs of this user, and the machine's service, where this user may ask it."""

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
_RESTART_RUN = (
    "this run is guarded by nobody: look whether it is stopped (ps), and start it again; it resumes from its newest "
    "checkpoint"
)


@dataclass(frozen=True, slots=True)
class Agents:
    findings: tuple[Finding, ...]
    #: Every training process that is registered here, as `status --json` shows it; each once.
    sessions: tuple[Mapping[str, Any], ...]
    #: The run ids of those that are meant and whose agents answer.
    running: tuple[str, ...] = ()
    #: The shortest warning that one of those counts on, and its reserve.
    counted: Counted | None = None
    #: Training processes of other runs than the one that is meant.
    others: tuple[Mapping[str, Any], ...] = ()
    #: The machine's service sees, and a run with these options lets it look.
    sees: bool = False


def ask(
    options: Options, env: Mapping[str, str], uid: int, *, run_id: str = "", service: Path = SERVICE_SOCKET
) -> Agents:
    """
    Args:
        run_id: the run that is meant; "" for all.
        service: where the machine's service would listen.
    """
    findings: list[Finding] = []
    said = [Path(options.socket).absolute()] if options.socket else []
    try:
        found = control.find_sockets(env, uid, service)
    except control.AgentError as error:
        if not said:
            what, _, advice = str(error).rpartition(": ")
            return Agents((fails("agent", what, advice),), ())
        # The rest would be somebody else's, and `run` does not need it.
        found = control.machine_sockets(service)
    # Where the run that is meant would have its socket.
    place = path_of(options.socket, run_id, env, uid).absolute() if said or run_id else None
    asked = {path: body for path in dict.fromkeys([*said, *found]) if (body := _status(path, service))}
    meant = {
        path: body
        for path, body in asked.items()
        if path == service or (_is_run(run_id, place, path, body) and (not said or path in said))
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
    found = [
        Counted(str(body["run_id"]), float(body["window"]), body["reserve"])
        for body in running
        if "reserve" in body  # an agent of an older version does not say
    ]
    return min(found, key=lambda each: each.seconds, default=None)


def _sees(service: Mapping[str, Any]) -> bool:
    sources = service.get("sources", ())
    return bool(sources) and all(source["sight"] == "seeing" for source in sources)


def instead(own: Finding) -> Finding:
    """What was seen from here, where the machine's service sees: what it could not see (a pod's network is not its node's) hides
    nothing from a run."""
    if own.check != "notices" or own.facts.get("sight", "seeing") == "seeing":
        return own
    found = f"seen by the machine's service, which runs here ask; from here {own.found}"
    return replace(own, state=FindingState.OK, found=found, advice="")


def _is_run(run_id: str, place: Path | None, path: Path, body: Mapping[str, Any]) -> bool:
    """Whether this is the run that is meant, or a service whose socket was named. Who does not answer is known by its socket: a
    run's own, or its unit's (`spotguard bootstrap`)."""
    if not run_id or control.guards(run_id, path, body):
        return True
    return path == place if "error" in body else bool(body["service"])


def _held(run_id: str, place: Path, body: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether another run has the socket that this one would have."""
    if not _is_run(run_id, place, place, body):
        facts = {name: body[name] for name in ("socket", "pid", "run_id")}
        found = f"run {body['run_id']} answers at {place}, and not run {run_id}"
        advice = (
            f"say --run-id {body['run_id']} to ask about that one; beside it {run_id} needs another --socket"
        )
        yield fails("agent", found, advice, **facts, sessions=len(body["sessions"]))


def _status(path: Path, service: Path) -> dict[str, Any] | None:
    try:
        return control.status(path)
    except control.DeadSocketError:
        # A run's leftover guards nothing, and `run` takes its place; the service's is missed.
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
    blind: dict[tuple[str, str], Mapping[str, Any]] = {}  # what all keys suffer from together is one thing
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
        unguarded = not count and not body["service"]
        yield warning("agent", found, _NOBODY, **facts) if unguarded else ok("agent", found, **facts)


def _shut_out(service: Path) -> Iterator[Finding]:
    """Whether there is a service that this user may not ask."""
    try:
        os.stat(service)
    except PermissionError:
        group = _group(service.parent)
        yield warning(
            "agent",
            f"a service watches here ({service}), and you are not in its group, {group}",
            f"sudo usermod -aG {group} $USER, and log in again; until then each run looks for itself",
        )
    except OSError:  # none is here
        return


def _group(folder: Path) -> str:
    gid = os.stat(folder).st_gid
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:  # a container knows another list of groups
        return str(gid)


def _sessions(
    bodies: Sequence[Mapping[str, Any]], meant: Callable[[str], bool]
) -> tuple[Mapping[str, Any], ...]:
    """A process may be known to its run and to the service."""
    found: dict[tuple[int, str], Mapping[str, Any]] = {}
    for body in bodies:
        for each in body.get("sessions", ()):
            if meant(each["run_id"]):
                found.setdefault((each["pid"], each["store"]), each)
    return tuple(found.values())
