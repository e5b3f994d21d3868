"""Assembly of an agent: `run` builds one around a command, `serve` builds one for the whole machine.

The order matters. Signal handlers come before anything that a SIGTERM could lose. The socket comes before the command,
which gets the socket's path in its environment. The sources come last. The agent ends in the opposite order.
"""

from __future__ import annotations

import logging
import os
import queue
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..providers.clock import Clock, SystemClock
from ..providers.clouds.detect import cloud_of
from ..providers.errors import SpotguardError
from ..providers.notice import NoticeSource
from . import outcome
from .config.options import PARENT, Options
from .core.budget import expected_window
from .core.machine import Machine
from .core.state import Policy
from .events import Event
from .ipc.heartbeats import Heartbeats
from .ipc.paths import SERVICE_SOCKET, is_socket, path_of
from .ipc.server import Server
from .loop import Agent, Watches
from .process import proctree, torchrun
from .process.helpers.node_label import NodeLabel, node_of
from .process.helpers.stall_recorder import StallRecorder
from .process.memory.counters import MemoryCounters
from .process.signals import Signals
from .process.supervisor import Supervisor
from .sources.factory import cloud_sources, own_sources
from .sources.health_log import CommonHealth
from .sources.poller import Poller
from .sources.remote import RemoteFeed
from .telemetry import logs, systemd
from .telemetry.status import AgentFacts

if TYPE_CHECKING:  # loaded only when an option requests them
    from .process.helpers.alert_helper import AlertHelper
    from .process.helpers.verifier import Verifier
    from .process.notice_hook import NoticeHook
    from .telemetry.exclude_file import Exclusion
    from .telemetry.metrics.recorder import MetricsRecorder

logger = logging.getLogger("spotguard.agent")

#: Seconds that the agent waits for each poller at its end. A poll may hang on a silent network; the exit code must not wait.
_PATIENCE = 0.2


def run(
    options: Options,
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    *,
    service_socket: Path = SERVICE_SOCKET,
) -> int:
    """Guard `command` until it ends, and return the code to exit with.

    Args:
        options: the options.
        command: the command.
        variables: what its environment has beside this process's and the agent's own.
        service_socket: the path of the machine's service agent.

    Raises:
        UsageError: an option cannot be used, or the command cannot be started (`CommandError`, with its code).
    """
    policy = Policy(
        command=True,
        window=options.window,
        reserve=options.reserve,
        signal=options.signal,
        max_restarts=options.max_restarts,
        recover=options.recover or {},
        excludes=options.exclude_file is not None,
        node=node_of(os.environ),
        launcher_restarts=torchrun.restarts(command, os.environ),
        outlive=options.outlive,
        attach=options.attach,
        exit_code=options.exit_code,
        acknowledge=options.acknowledge,
        stall_first=None if options.stall_first == "off" else options.stall_first,
        verify_every=None if options.verify_every == "off" else options.verify_every,
    )
    path = path_of(options.socket, options.run_id, os.environ, os.geteuid())
    with _threads():
        return _assemble(options, policy, path, command, service_socket, variables or {})


def serve(options: Options) -> int:
    """Poll for the whole machine until SIGTERM, and return the code to exit with."""
    path = Path(options.socket) if options.socket else SERVICE_SOCKET
    policy = Policy(
        command=False,
        window=options.window,
        reserve=options.reserve,
        acknowledge=options.acknowledge,
        stall_first=None if options.stall_first == "off" else options.stall_first,
    )
    with _threads():
        return _assemble(options, policy, path, None, None, {})


@contextmanager
def _threads() -> Iterator[None]:
    """Name the limit where the system gives no thread."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        limits = "raise the limit of processes (ulimit -u, a pod's pids limit), which counts threads"
        raise SpotguardError(f"spotguard needs a dozen threads: {error}; {limits}") from error


def _assemble(
    options: Options,
    policy: Policy,
    path: Path,
    command: Sequence[str] | None,
    service_socket: Path | None,
    variables: Mapping[str, str],
) -> int:
    clock, rng = SystemClock(), random.Random()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    post = events.put
    with ExitStack() as stack:
        stack.callback(logs.flush)  # runs last: the front door prints its last line after the log
        stack.enter_context(Signals(post))  # first: a SIGTERM during start-up must not be lost
        manager = systemd.Manager.take(os.environ, os.getpid())  # before the environment is copied
        stack.callback(manager.close)
        make_cloud_sources, operator_sources = cloud_sources(options, clock), own_sources(options, clock)
        heartbeats = Heartbeats(post, clock)
        stack.callback(heartbeats.close)
        server = Server(
            path, post, clock, service=command is None, lives=proctree.recorded, heartbeat=heartbeats.open
        )
        stack.callback(server.close)
        server.start()
        # The command keeps the variables that `_metrics` removes from the agent's own environment.
        supervisor, env, orphan = None, dict(os.environ), None
        meter = _metrics(options, path, command is None, clock, stack)
        alerts = _alerts(options, path, command is None, post, clock)
        if alerts is not None:
            stack.callback(alerts.close)
        if command is not None:
            env = exported(options, server.path, {**env, **variables})
            env |= torchrun.told(command, options.window, env)
            supervisor = Supervisor(command, env=env, post=post)
            stack.callback(supervisor.close)
            if (orphan := proctree.inherited(server.listener.before, env)) is not None:
                supervisor.adopt(orphan)
        notice_hook = _notice_hook(options, env, post, clock)
        if notice_hook is not None:
            stack.callback(notice_hook.close)
        exclusions = _exclusions(options, policy)
        for exclusion in exclusions:
            stack.callback(exclusion.close)
        verifier = _verifier(policy, env, post)
        if verifier is not None:
            stack.callback(verifier.close)
        stall_recorder = None if command is None else StallRecorder(env)
        if stall_recorder is not None:
            stack.callback(stall_recorder.close)
        ours = {source.name for source in operator_sources}

        def poller(
            source: NoticeSource, post: Callable[[Event], None], common: CommonHealth | None
        ) -> Poller:
            return Poller(source, post, clock, rng, common, None if meter is None else meter.polled)

        watches = _watches(options, make_cloud_sources, poller, post, clock, rng, service_socket, ours)
        watching = [*watches, *(poller(source, post, None) for source in operator_sources)]
        if command is None:
            names = [watch.name for watch in watching if isinstance(watch, Poller)]
            nothing = "nothing (no cloud was named or found): drills still work"
            logger.info("serving at %s, watching %s", server.path, ", ".join(names) or nothing)
        for watch in watching:
            watch.start()
            stack.callback(watch.stop, _PATIENCE)
        run_id = options.run_id or path.stem
        # A run that leaves polling to this agent asks how many cloud sources the agent polls. The operator's own sources
        # (`--deadline`, `--notice-file`) do not count.
        facts = AgentFacts(
            run_id,
            os.getpid(),
            str(server.path),
            command is None,
            clock.monotonic(),
            len(watches),
            expected_window(cloud_of(options.provider), options.window),
            options.window is not None,
            options.reserve,
        )
        machine = Machine(policy)
        agent = Agent(
            machine,
            server,
            clock,
            events,
            facts,
            supervisor,
            notice_hook,
            watches=watching,
            manager=manager,
            meter=meter,
            memory=MemoryCounters(),
            alerts=alerts,
            verifier=verifier,
            heartbeats=heartbeats,
            exclusions=exclusions,
            stall_recorder=stall_recorder,
            orphan=orphan,
        )
        return agent.run()


def _metrics(
    options: Options, path: Path, service: bool, clock: Clock, stack: ExitStack
) -> MetricsRecorder | None:
    """Return the recorder of the metrics, whose endpoint is open; None without a port."""
    if options.metrics_port is None:
        return None
    from .telemetry.metrics import assembly

    run_id = options.run_id or path.stem
    meter, endpoint = assembly.opened(options, options.metrics_port, run_id, clock, service=service)
    stack.callback(endpoint.close)
    for record in outcome.earlier(path.parent, path.stem):
        meter.ended(record)
    endpoint.start()
    logger.info("metrics at %s", endpoint.url)
    return meter


def _alerts(
    options: Options, path: Path, service: bool, post: Callable[[Event], None], clock: Clock
) -> AlertHelper | None:
    """Return the helper of alerts, not started yet; None if no option asks for it."""
    if not (options.webhook or options.on_failure or options.metrics_port is not None):
        return None
    from .process.helpers.alert_helper import AlertHelper

    begin = {
        "run_id": options.run_id or path.stem,
        "command": "agent" if service else "run",
        "socket": str(path),
        "store": options.store,
        "stage": options.stage,
        "webhooks": options.webhook,
        "on_failure": options.on_failure,
        "json_log": options.json_log,
        "log_level": options.log_level,
    }
    return AlertHelper(begin, post, clock)


def _notice_hook(
    options: Options, env: dict[str, str], post: Callable[[Event], None], clock: Clock
) -> NoticeHook | None:
    if options.on_notice is None:
        return None
    # Loaded at the start: at a notice, only the bytes of the save should move.
    from .process.notice_hook import NoticeHook

    return NoticeHook(options.on_notice, env, post, clock)


def _exclusions(options: Options, policy: Policy) -> list[Exclusion]:
    """Return the ways to keep the job from a machine that failed."""
    found: list[Exclusion] = []
    if options.exclude_file is not None:
        from .telemetry.exclude_file import ExcludeFile

        found.append(ExcludeFile(options.exclude_file, os.environ))
    if policy.node:
        found.append(NodeLabel(policy.node, os.environ))
    return found


def _verifier(policy: Policy, env: dict[str, str], post: Callable[[Event], None]) -> Verifier | None:
    if policy.verify_every is None:
        return None
    from .process.helpers.verifier import Verifier

    return Verifier(env, post)


def _watches(
    options: Options,
    make_sources: Callable[[], list[NoticeSource]],
    poller: Callable[[NoticeSource, Callable[[Event], None], CommonHealth | None], Poller],
    post: Callable[[Event], None],
    clock: Clock,
    rng: random.Random,
    service_socket: Path | None,
    ours: Collection[str],
) -> list[Watches]:
    def own(post: Callable[[Event], None]) -> list[Poller]:
        sources = make_sources()
        common = CommonHealth(sources[0].name) if len(sources) > 1 else None
        return [poller(source, post, common) for source in sources]

    # `--metadata-endpoint` names the service to poll, and `--provider none` polls no cloud: both exclude the service agent.
    may_follow = service_socket is not None and options.provider != "none" and not options.metadata_endpoint
    if may_follow and service_socket is not None and _there(service_socket):
        return [RemoteFeed(service_socket, post, clock, rng, own, ours=ours)]
    return list(own(post))


def _there(service_socket: Path) -> bool:
    """Return whether this machine has, or may soon have, a service agent.

    The directory of the socket is enough, because the service may still be starting. A Kubernetes node that comes up starts its
    agent and its jobs at once, and an agent that restarts is absent for a moment.
    """
    try:
        return is_socket(service_socket) or service_socket.parent.is_dir()
    except PermissionError:
        folder = service_socket.parent
        logger.info("not in the group of %s, the service agent's: looking for notices here", folder)
        return False


# The environment that `spotguard run` gives its command.
#
# A command may start a `spotguard run` of its own. The inner run needs its own socket and run id, or it would request
# those of the outer agent. It may share the store and the checkpoint interval.


def exported(options: Options, socket: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the command's environment: the agent's own, and the variables that `spotguard.register` reads."""
    given = {
        PARENT: f"{options.run_id}:{socket}",
        "SPOTGUARD_SOCKET": str(socket),
        "SPOTGUARD_RUN_ID": options.run_id,
        "SPOTGUARD_STORE": options.store,
        "SPOTGUARD_EVERY": options.every,
        "SPOTGUARD_KEEP": options.keep,
        "SPOTGUARD_STAGE": options.stage,
        "SPOTGUARD_LOSSY_MOMENTS": "yes" if options.lossy_moments else "",
        "SPOTGUARD_EXTRAS_WORTH": options.extras_worth,
        "SPOTGUARD_BEGIN_ANEW": "yes" if options.begin_anew else "",
    }
    # These belong to this agent. A `spotguard run` inside the command would find the port taken and not start, and would send each
    # alert once more. A webhook's URL may be a secret.
    own = ("SPOTGUARD_METRICS_PORT", "SPOTGUARD_WEBHOOK", "SPOTGUARD_ON_FAILURE")
    env = {name: value for name, value in env.items() if name not in own}
    return {**env, **{name: str(value) for name, value in given.items() if value not in (None, "")}}
