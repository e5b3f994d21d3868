"""This process at its machine's agent: what it says of itself, and whom the agent's words reach, from when they may.

The agent may speak as soon as the connection stands, and a guard that is half made can do nothing with it: words wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ...providers.clock import Clock
from ...providers.errors import UsageError
from ..ipc import interpreter_lock, protocol
from ..ipc.client import SocketClient
from ..ipc.notice import alarm_of
from ..save.plan.schedule import CheckpointSchedule
from .coordinator import Coordinator
from .report import Report
from .saver import Saver

#: Seconds that `register` waits for the agent's welcome, to learn of a notice that is already there.
_WELCOME = 2.0


class AgentSession:
    """None, where there is no agent: everything is said to nobody then.

    Args:
        hello: the first words of each connection.
        position: where training stands; asked for once the guard is `built`.
        hear: called with each word of the agent, on the listener thread.
        lost: called when an agent that had welcomed us is gone.
        welcomed: called with each connection, from when words are heard, and whether this agent knows what a call of the
            job's ranks is.
    """

    def __init__(
        self,
        hello: Callable[[], protocol.Register],
        position: Callable[[], protocol.Position],
        hear: Callable[[protocol.Message], None],
        lost: Callable[[], None],
        welcomed: Callable[[bool], None],
    ) -> None:
        self._hello = hello
        self._position = position
        self._heard = hear
        self._lost = lost
        self._welcomed = welcomed
        self._built = threading.Event()
        self._told = threading.Event()
        self._closed = False
        #: The agent knows what a call is.
        self._calls = False
        self.client: SocketClient | None = None

    def connect(self, socket: str) -> None:
        """
        Args:
            socket: the agent's; "" for none.

        Raises:
            UsageError: the agent refuses this process.
        """
        if not socket:
            return
        client = self.client = SocketClient(
            socket,
            hello=self._hello,
            on_message=self.hear,
            position=lambda: self._position() if self._built.is_set() and not self._closed else None,
            on_lost=self._on_lost,
            on_welcome=self._on_welcome,
        )
        interpreter_lock.stand_aside()
        client.start()
        client.wait_answered(_WELCOME)
        if client.refused:
            raise UsageError(f"the agent refuses this process: {client.refused}")

    def built(self) -> None:
        """From here on words are heard. Returns when the notice is, that was there before us."""
        self._built.set()
        self._welcomed(self._calls)
        self.tell_position()
        if self.client is not None and self.client.departing:
            self._told.wait(_WELCOME)  # or the first steps would be over before the notice is heard

    def tell_position(self) -> None:
        if self.client is not None:
            self.client.tell_position()

    def send(self, message: protocol.Message, *, droppable: bool = False) -> bool:
        """Implements `report.MessageSender`."""
        return self.client is not None and self.client.send(message, droppable=droppable)

    @property
    def guarded(self) -> bool:
        """An agent watches, and may have something to say any moment."""
        return self.client is not None and self.client.guarded

    def forget(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._closed = True
        if self.client is not None:
            self.client.forget()

    def end(self) -> None:
        """Nothing that is said is heard any more."""
        self._closed = True
        self._built.set()

    def close(self) -> None:
        """Say goodbye."""
        self.end()
        if self.client is not None:
            self.client.close()

    def hear(self, message: protocol.Message) -> None:
        """A word of the agent, on the listener thread; it waits until the guard is built."""
        self._built.wait()  # a notice that is there already comes right behind the welcome
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
        self._calls = welcome.calls
        if self._built.is_set() and not self._closed:
            self._welcomed(welcome.calls)


# What the agent's words do to a guarded process, on the listener thread.

log = logging.getLogger("spotguard")


class AgentMessages:
    """Hears one after the other, and hands each to whom it concerns; none of them blocks.

    Args:
        leave: has training end with an exit code.
        ranks: the others of this job, who are to hear of it too.
    """

    def __init__(
        self,
        saver: Saver,
        cadence: CheckpointSchedule,
        report: Report,
        clock: Clock,
        leave: Callable[[int], None],
        ranks: Coordinator | None = None,
    ) -> None:
        self._saver = saver
        self._cadence = cadence
        self._report = report
        self._clock = clock
        self._leave = leave
        self._ranks = ranks

    def hear(self, message: protocol.Message) -> None:
        """One of them."""
        match message:
            case protocol.Preempt():
                now = self._clock.monotonic()
                self._report.told(message.id)
                log.warning(
                    "%s from %s: %.1f s left, saving", message.kind, message.source, message.seconds_left
                )
                if self._ranks is not None:
                    self._ranks.notice(message)
                else:
                    self._saver.emergency(alarm_of(message, now))
            case protocol.CheckpointNow(reason=reason, going=going):
                if self._cadence.ask(going=going):
                    if self._ranks is not None and not self._ranks.first:  # its own boundary asks
                        self._ranks.background(reason)
                    log.info("a checkpoint at the next step, beside training: %s", reason)
                else:
                    log.info("no checkpoint, for background checkpoints are switched off: %s", reason)
            case protocol.Withdrawn(id=id):
                self._release(id, "the notice was withdrawn")
            case protocol.Resume(id=id):
                self._release(id, "the drill is over")
            case protocol.Leave(code=code):
                self._leave(code)

    def _release(self, id: str, why: str) -> None:
        if self._ranks is not None:
            self._ranks.withdrawn(id, why)
        else:
            self._saver.release(id, why)
