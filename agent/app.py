"""What an agent is made of: `run` puts one together around a command, `serve` one for the whole machine.

The order is the matter here: signals before anything that a SIGTERM could lose, the socket before the command that is
told of it, the sources last; and the end in the opposite order.
"""

from __future__ import annotations

import logging
import os
import queue
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..providers.clock import Clock, SystemClock
from ..providers.clouds.detect import cloud_of
from ..providers.notice import NoticeSource
from . import outcome
from .config.options import PARENT, Options
from .core.budget import expected_window
from .core.machine import Machine
from .core.state import Policy
from .events import Event
from .ipc.paths import SERVICE_SOCKET, is_socket, path_of
from .ipc.server import Server
from .loop import Agent, Watches
from .process import proctree, torchrun
from .process.signals import Signals
from .process.supervisor import Supervisor
from .sources.factory import cloud_sources, own_sources
from .sources.health_log import CommonHealth
from .sources.poller import PollCount, Poller
from .sources.remote import RemoteFeed
from .telemetry import logs, systemd
from .telemetry.status import AgentFacts

if TYPE_CHECKING:  # loaded where they are asked for
    from .process.notice_hook import NoticeHook
    from .telemetry.metrics.recorder import MetricsRecorder

logger = logging.getLogger("spotguard.agent")

#: At the end a look that hangs on a silent network is not waited for: the exit code is.
_PATIENCE = 0.2


def run(options: Options, command: Sequence[str], *, service_socket: Path = SERVICE_SOCKET) -> int:
    """Guard `command` until it ends, and return the code to exit with.

    Raises:
        UsageError: an option cannot be used, or the command cannot be started (`CommandError`, with its code).
    """
    policy = Policy(
        command=True,
        window=options.window,
        reserve=options.reserve,
        signal=options.signal,
        max_restarts=options.max_restarts,
        outlive=options.outlive,
        exit_code=options.exit_code,
        acknowledge=options.acknowledge,
    )
    path = path_of(options.socket, options.run_id, os.environ, os.geteuid())
    return _serve(options, policy, path, command, service_socket)


def serve(options: Options) -> int:
    """Watch for the whole machine until SIGTERM, and return the code to exit with."""
    path = Path(options.socket) if options.socket else SERVICE_SOCKET
    policy = Policy(
        command=False, window=options.window, reserve=options.reserve, acknowledge=options.acknowledge
    )
    return _serve(options, policy, path, None, None)


def _serve(
    options: Options, policy: Policy, path: Path, command: Sequence[str] | None, service_socket: Path | None
) -> int:
    clock, rng = SystemClock(), random.Random()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    post = events.put
    with ExitStack() as stack:
        stack.callback(logs.flush)  # last: what the front door says of our end comes after it
        stack.enter_context(Signals(post))  # first: a SIGTERM during start-up must not be lost
        manager = systemd.Manager.take(os.environ, os.getpid())  # before anybody copies the environment
        stack.callback(manager.close)
        looked, said = cloud_sources(options, clock), own_sources(options, clock)
        server = Server(path, post, clock, service=command is None, lives=proctree.recorded)
        stack.callback(server.close)
        server.start()
        count = PollCount()
        meter = _metrics(options, path, command is None, count, clock, stack)
        supervisor, env, orphan = None, dict(os.environ), None
        if command is not None:
            env = exported(options, server.path, os.environ)
            env |= torchrun.told(command, options.window, env)
            supervisor = Supervisor(command, env=env, post=post)
            stack.callback(supervisor.close)
            if (orphan := proctree.inherited(server.listener.before, env)) is not None:
                supervisor.adopt(orphan)
        herald = _herald(options, env, post, clock)
        if herald is not None:
            stack.callback(herald.close)
        ours = {source.name for source in said}

        def watcher(
            source: NoticeSource, post: Callable[[Event], None], chorus: CommonHealth | None
        ) -> Poller:
            return Poller(source, post, clock, rng, chorus, count)

        watches = _watches(options, looked, watcher, post, clock, rng, service_socket, ours)
        watching = [*watches, *(watcher(source, post, None) for source in said)]
        if command is None:
            names = [watch.name for watch in watching if isinstance(watch, Poller)]
            nothing = "nothing (no cloud was named or found): only drills are heard"
            logger.info("serving at %s, watching %s", server.path, ", ".join(names) or nothing)
        for watch in watching:
            watch.start()
            stack.callback(watch.stop, _PATIENCE)
        run_id = options.run_id or path.stem
        # Who lets us watch the cloud for them asks how many of its sources we watch: what was said to us is none.
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
            herald,
            watches=watching,
            manager=manager,
            meter=meter,
            orphan=orphan,
        )
        return agent.run()


def _metrics(
    options: Options, path: Path, service: bool, count: PollCount, clock: Clock, stack: ExitStack
) -> MetricsRecorder | None:
    """Where a port was given: what counts, with the endpoint open from here on."""
    if options.metrics_port is None:
        return None
    from .telemetry.metrics import opening
    from .telemetry.metrics.recorder import MetricsRecorder

    meter = MetricsRecorder()
    for record in outcome.earlier(path.parent, path.stem):
        meter.ended(record)
    run_id = options.run_id or path.stem
    read = opening.reader(options, run_id, meter, count, clock, service=service)
    endpoint = opening.endpoint(options.metrics_port, read)
    stack.callback(endpoint.close)
    endpoint.start()
    logger.info("metrics at %s", endpoint.url)
    return meter


def _herald(
    options: Options, env: dict[str, str], post: Callable[[Event], None], clock: Clock
) -> NoticeHook | None:
    if options.on_notice is None:
        return None
    from .process.notice_hook import NoticeHook  # now, and not at the notice: only bytes move then

    return NoticeHook(options.on_notice, env, post, clock)


def _watches(
    options: Options,
    looked: Callable[[], list[NoticeSource]],
    watcher: Callable[[NoticeSource, Callable[[Event], None], CommonHealth | None], Poller],
    post: Callable[[Event], None],
    clock: Clock,
    rng: random.Random,
    service_socket: Path | None,
    ours: Collection[str],
) -> list[Watches]:
    def own(post: Callable[[Event], None]) -> list[Poller]:
        found = looked()
        chorus = CommonHealth(found[0].name) if len(found) > 1 else None
        return [watcher(source, post, chorus) for source in found]

    # Who names an endpoint means that one, and who says `none` means none.
    relayed = service_socket is not None and options.provider != "none" and not options.metadata_endpoint
    if relayed and service_socket is not None and _there(service_socket):
        return [RemoteFeed(service_socket, post, clock, rng, own, ours=ours)]
    return list(own(post))


def _there(service_socket: Path) -> bool:
    """Whether this machine has a service. One whose folder is there may be on its way: a node that comes up starts its agent and
    its jobs at once (Kubernetes), and an agent that is started again is away for a moment."""
    try:
        return is_socket(service_socket) or service_socket.parent.is_dir()
    except PermissionError:
        folder = service_socket.parent
        logger.info("not in the group of %s, the service agent's: looking for notices here", folder)
        return False


# What `spotguard run` gives its command by the environment, and what a `spotguard` inside that command leaves there.
#
# A command may start a `spotguard run` of its own. That one has another socket and another run id, or it would ask
# for those of the agent around it; store and cadence may well be the same.


def exported(options: Options, socket: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: ours, and what `spotguard.register` reads."""
    said = {
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
    # Its endpoint is one agent's: a `spotguard run` inside the command would find the port taken, and refuse to start.
    env = {name: value for name, value in env.items() if name != "SPOTGUARD_METRICS_PORT"}
    return {**env, **{name: str(value) for name, value in said.items() if value not in (None, "")}}
