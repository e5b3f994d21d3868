"""The connection of this process to its machine's agent, and the handling of the agent's messages.

The agent may send messages as soon as the connection is open. A guard that is only half built cannot handle them, so messages
wait until it is built.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from ...providers.clock import Clock
from ...providers.errors import UsageError
from ..arguments.settings import is_under_run
from ..checkpoint.format.keys import CheckpointName
from ..commit.plan.damage import FoundDamage
from ..ipc import interpreter_lock, protocol
from ..ipc.client import SocketClient
from ..ipc.notice import PreemptionNotice
from ..save.schedule import CheckpointSchedule
from .ranks.coordinator import Coordinator
from .report import Report
from .saver import NOT_BEGUN, Saver

#: Seconds that `register` waits for the agent's welcome, to learn of a notice that is already there.
_WELCOME = 2.0

log = logging.getLogger("spotguard")


class AgentSession:
    """The session of this process with the agent. Without an agent, it drops every message.

    Args:
        hello: returns the first message of each connection.
        position: returns the position of training; called once the guard is `built`.
        hear: called with each message of the agent, on the listener thread.
        lost: called when an agent that had welcomed this process is gone.
        welcomed: called with each connection, once the guard is `built`; its argument is where this agent answers heartbeats.
    """

    def __init__(
        self,
        hello: Callable[[], protocol.Register],
        position: Callable[[], protocol.Position],
        hear: Callable[[protocol.Message], None],
        lost: Callable[[], None],
        welcomed: Callable[[str], None],
    ) -> None:
        self._hello = hello
        self._position = position
        self._heard = hear
        self._lost = lost
        self._welcomed = welcomed
        self._built = threading.Event()
        self._told = threading.Event()
        self._closed = False
        #: The place at which the first agent answered the heartbeats of other machines' agents; "" for nowhere. The other machines know it, so
        #: each later agent is told.
        self.heartbeat = ""
        self.client: SocketClient | None = None

    def connect(self, socket: str) -> None:
        """Connect to the agent, and wait for its welcome.

        Args:
            socket: the path of the agent's socket; "" for none.

        Raises:
            UsageError: the agent refuses this process.
        """
        if not socket:
            return
        client = self.client = SocketClient(
            socket,
            hello=lambda: replace(self._hello(), heartbeat=self.heartbeat),
            on_message=self.hear,
            position=lambda: self._position() if self._built.is_set() and not self._closed else None,
            on_lost=self._on_lost,
            on_welcome=self._on_welcome,
        )
        interpreter_lock.stand_aside()
        client.start()
        client.wait_answered(_WELCOME)
        if client.refused:
            raise UsageError(f"the agent refuses this process: {client.refused} [SG102]")

    def built(self) -> None:
        """Start to handle messages. If a notice was active before this process registered, return once it is handled."""
        self._built.set()
        self._welcomed(self.heartbeat)
        self.tell_position()
        if self.client is not None and self.client.departing:
            self._told.wait(_WELCOME)  # else the first steps would be over before the notice is handled

    def tell_position(self) -> None:
        if self.client is not None:
            self.client.tell_position()

    def send(self, message: protocol.Message, *, droppable: bool = False) -> bool:
        """Implements `report.MessageSender`."""
        return self.client is not None and self.client.send(message, droppable=droppable)

    @property
    def guarded(self) -> bool:
        """Whether an agent is connected, which may deliver a notice at any moment."""
        return self.client is not None and self.client.guarded

    @property
    def shows_here(self) -> bool:
        """Whether the agent shows at this terminal what it is told. One that runs as a service writes to the machine's journal."""
        return self.guarded and is_under_run()

    def forget(self) -> None:
        """Drop the connection in a forked child: it belongs to the parent."""
        self._closed = True
        if self.client is not None:
            self.client.forget()

    def end(self) -> None:
        """Ignore all further messages."""
        self._closed = True
        self._built.set()

    def close(self) -> None:
        """Send the agent `Bye`, and close the connection."""
        self.end()
        if self.client is not None:
            self.client.close()

    def hear(self, message: protocol.Message) -> None:
        """Handle a message of the agent, on the listener thread. The message waits until the guard is built."""
        self._built.wait()  # an active notice comes right after the welcome
        if self._closed:
            return
        self._heard(message)
        if isinstance(message, protocol.Preempt):
            self._told.set()

    def _on_lost(self) -> None:
        self._built.wait()
        if not self._closed:
            self._lost()

    def _on_welcome(self, welcome: protocol.Welcome) -> None:
        self.heartbeat = self.heartbeat or welcome.heartbeat
        if self._built.is_set() and not self._closed:
            self._welcomed(welcome.heartbeat)


# --- the agent's messages to a guarded process, on the listener thread ---


class AgentMessages:
    """The handler of the agent's messages, one after the other. No message blocks.

    Args:
        saver: saves for a notice.
        schedule: the schedule of background checkpoints.
        report: confirms to the agent that a notice was delivered.
        clock: the clock.
        leave: ends training with an exit code.
        damage: the damaged checkpoints.
        coordinator: the other ranks of this job, which get each notice too; None for a job of one process.
    """

    def __init__(
        self,
        saver: Saver,
        schedule: CheckpointSchedule,
        report: Report,
        clock: Clock,
        leave: Callable[[int], None],
        damage: FoundDamage,
        coordinator: Coordinator | None = None,
    ) -> None:
        self._damage = damage
        self._saver = saver
        self._schedule = schedule
        self._report = report
        self._clock = clock
        self._leave = leave
        self._coordinator = coordinator

    def hear(self, message: protocol.Message) -> None:
        """Handle one message."""
        match message:
            case protocol.Preempt():
                now = self._clock.monotonic()
                self._report.told(message)
                if message.kind == protocol.STALL and not self._saver.ready:
                    # Each rank answers for itself, and no gate is closed: ranks that were called together, for nothing, could read
                    # that call behind its end, and stand at the gate.
                    notice = PreemptionNotice.received(message, now)
                    self._saver.in_turn(lambda: self._report.failed(notice, NOT_BEGUN, -1, lost=False))
                elif self._coordinator is not None:
                    self._coordinator.notice(message)
                else:
                    self._saver.emergency(PreemptionNotice.received(message, now))
            case protocol.CheckpointDamaged(checkpoint=checkpoint, reason=reason, objects=objects):
                if (name := CheckpointName.parse(checkpoint)) is not None:
                    self._damage.add(name, reason, objects.split())
            case protocol.CheckpointNow(reason=reason, going=going):
                if self._schedule.ask(going=going):
                    # The first rank calls at its own boundary.
                    if self._coordinator is not None and not self._coordinator.first:
                        self._coordinator.background(reason)
                    log.info("spotguard makes a background checkpoint at the next step: %s", reason)
                else:
                    log.info(
                        "spotguard makes no checkpoint, because background checkpoints are off: %s", reason
                    )
            case protocol.Withdrawn(id=id):
                self._release(id, "the notice was withdrawn")
            case protocol.Resume(id=id):
                self._release(id, "the drill is over")
            case protocol.Leave(code=code):
                self._leave(code)

    def _release(self, id: str, why: str) -> None:
        if self._coordinator is not None:
            self._coordinator.withdrawn(id, why)
        else:
            self._saver.release(id, why)
