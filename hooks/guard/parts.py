"""The parts of a guard: each is made here, and connected with those that it needs.

No part knows the guard. A part that has news for it calls one of `GuardCallbacks`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ...providers.clock import Clock
from ...providers.stores.base import BlobStore, StoreMovement
from ...providers.text import TEXT, clip
from ..arguments.settings import Settings, agent_socket, for_one_process
from ..checkpoint.format.keys import CheckpointName
from ..checkpoint.history import AttemptHistory
from ..checkpoint.local_stage import Stage
from ..commit.plan.damage import FoundDamage
from ..consensus.channel import Channel
from ..control.agent_session import AgentMessages, AgentSession
from ..control.ending import sigterm
from ..control.ending.error_save import ErrorSave
from ..control.ending.shutdown import ProcessShutdown
from ..control.gate import Gate
from ..control.losses.metrics import ScriptMetrics
from ..control.losses.watch import LossWatch
from ..control.ranks.coordinator import Coordinator
from ..control.report import Report
from ..control.saver import Saver
from ..ipc import protocol
from ..ipc.failures.phase_times import PhaseTimes
from ..ipc.failures.progress import TrainingProgress
from ..ipc.notice import PreemptionNotice
from ..ipc.threads import join_ended
from ..restore.collective import cannot_begin
from ..restore.proof_file import judged
from ..restore.startup import Startup, StartupMessages
from ..save.checkpointer import Checkpointer
from ..save.request import SavedCheckpoint
from ..save.schedule import CheckpointSchedule
from ..state.state import State

log = logging.getLogger("spotguard")


@dataclass(frozen=True, slots=True)
class GuardCallbacks:
    """The calls that the parts of a guard make, on threads of their own.

    Attributes:
        registration: returns the first message of each connection to the agent.
        position: returns where training stands, for the agent.
        saved: called with each checkpoint that no notice asked for.
        ended: called with each notice that ended, and whether its save committed.
        leave: ends training with an exit code.
    """

    registration: Callable[[], protocol.Register]
    position: Callable[[], protocol.Position]
    saved: Callable[[SavedCheckpoint], None]
    ended: Callable[[PreemptionNotice, bool], None]
    leave: Callable[[int], None]


class GuardParts:
    """The parts of one guard. Here are those that need no store; `admit` makes the others, and `begin` starts their threads.

    Args:
        store: the store of the checkpoints.
        run_id: the name of the run.
        state: the registered values, by name.
        clock: the clock.
        channel: this rank's channel to the other ranks; None in a job of one process.
        callbacks: what the parts call.
        settings: how this process was told to do it.

    Raises:
        StateError: a value cannot be saved.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        state: dict[str, Any],
        clock: Clock,
        channel: Channel | None,
        callbacks: GuardCallbacks,
        settings: Settings,
    ) -> None:
        self.settings = settings
        self.store, self.run_id, self.clock, self.channel = store, run_id, clock, channel
        self._callbacks = callbacks
        self.rank, self.world = (0, 1) if channel is None else (channel.rank, channel.world)
        self.agent = AgentSession(
            callbacks.registration, callbacks.position, self._hear, self._lost, self._welcomed
        )
        self.coordinator = None if channel is None else Coordinator(channel, clock, self.agent.send)
        #: The verdict of `spotguard prove` about this code, in words.
        self.proof = judged(state)
        self.startup_messages = StartupMessages(self.rank == 0, store.url, self.proof)
        self.phase_times = PhaseTimes()
        self.history = AttemptHistory(lambda: self.phase_times.facts)
        self.gate = gate = Gate(together=channel is not None)
        self.losses = LossWatch(self.rank, self.world, f"spotguard ls {store.url} --run-id {run_id}")
        self.metrics = ScriptMetrics()
        self.damage = FoundDamage(self._found_damage)
        self.schedule = CheckpointSchedule(settings.every, clock.monotonic())
        try:
            self.state = State(
                state,
                gate.before_change,
                clock,
                after_change=gate.after_change,
                rank=self.rank,
                world=self.world,
            )
            self.nbytes = self.state.expected_bytes()
        except Exception as error:
            if channel is not None:
                cannot_begin(channel, error)
            raise
        self.progress = TrainingProgress(
            lambda: gate.place.completed,
            clock,
            lambda: self.state.evaluates,
            times=self.phase_times,
            moves=lambda: StoreMovement.count,
            answers=lambda: self.report.answers,
        )

    def admit(self) -> None:
        """Have the agent, the store and the other ranks admit this process. Claim its attempt, and make the other parts.

        Raises:
            UsageError: the agent refuses this process, or two ranks have different settings.
            StateError: two tensors of the job have one name.
            StoreError: the store cannot be used.
        """
        settings = self.settings
        self.startup = Startup(self.store, self.run_id, self.clock, self.channel, self.proof, settings)
        self.startup.meet(self.state)
        # Connect to the agent and check access before the claim: the attempt of a refused process would fence the accepted one.
        self.startup.admit(lambda: self.agent.connect(agent_socket()))
        alone = self.channel is None
        folder = for_one_process("SPOTGUARD_STAGE", settings.stage, alone)
        self.stage = self.startup.stage = None if folder is None else Stage(folder, self.run_id, self.nbytes)
        attempt = self.startup.claim()
        lossy = bool(for_one_process("SPOTGUARD_LOSSY_MOMENTS", settings.lossy, alone))
        self.checkpointer = Checkpointer(
            self.store,
            self.run_id,
            attempt,
            clock=self.clock,
            keep=settings.keep,
            rank=self.rank,
            world=self.world,
            incarnation="" if self.channel is None else self.channel.incarnation,
            lossy=lossy,
            copies=self.schedule.interval < math.inf,
            stage=self.stage,
            history=self.history,
            suspicion=self.losses.why,
            damage=self.damage,
        )
        self.checkpointer.nbytes = self.nbytes
        self._make_savers()

    def _make_savers(self) -> None:
        """Make the parts that save for the agent, the script and its errors, and those that report it."""
        self.report = Report(
            self.checkpointer.requests.put,
            self.run_id,
            lambda: self.checkpointer.attempt,
            self.clock,
            self.agent.send,
            self._outcome_reported,
            self._callbacks.ended,
            rank=self.rank,
            keeps=lambda: self.coordinator is None or self.coordinator.speaks,
            history=lambda: {**self.history.of_rank(self.rank), "completed": self.gate.place.completed},
            place=self.progress.look,
            shown=lambda: self.agent.shows_here,
        )
        self.saver = Saver(
            gate=self.gate,
            state=self.state,
            checkpointer=self.checkpointer,
            clock=self.clock,
            listener=self.report,
            released=sigterm.redeliver,
            saved=self._callbacks.saved,
            coordinator=self.coordinator,
        )
        self.messages = AgentMessages(
            self.saver,
            self.schedule,
            self.report,
            self.clock,
            self._callbacks.leave,
            self.damage,
            self.coordinator,
        )
        self.shutdown = ProcessShutdown(self.saver, self.agent, self.coordinator, self._callbacks.leave)
        self.errors = ErrorSave(
            self.gate,
            self.state,
            self.saver,
            self.checkpointer,
            self.progress,
            self.report,
            self.clock,
            self.shutdown.unanswered,
            self.coordinator,
            earlier=lambda: self.startup.errors,
        )

    def begin(self) -> None:
        """Start the saver thread, listen to the other ranks, and watch the training loop."""
        self.saver.start()
        if self.coordinator is not None:
            self.coordinator.channel.meetings.look = self.gate.look
            self.coordinator.begin(
                self.saver, self.checkpointer, self.state, self.report, self.agent.heartbeat
            )
        self.state.monitor.begin()

    # --- between the session and parts that are made after it, since they send through it ---

    def _hear(self, message: protocol.Message) -> None:
        self.messages.hear(message)

    def _lost(self) -> None:
        self.saver.end_drills()

    def _welcomed(self, heartbeat: str) -> None:
        if self.coordinator is not None:
            self.coordinator.notices.greet(heartbeat)

    def _outcome_reported(self, preemption: PreemptionNotice) -> None:
        self.shutdown.outcome_reported(preemption)

    def _found_damage(self, name: CheckpointName, why: str, objects: Collection[str], heard: bool) -> None:
        """Tell the agent and the other ranks that a checkpoint is damaged, and have another one made. Any thread calls it.

        Whatever was made on the checkpoint asks `damage` itself, so nothing has to be dropped here.
        """
        # The position has what this process counts on now. It follows in any case, so the agent is not waited for.
        self.agent.send(protocol.CheckpointDamaged(str(name), name.step, clip(why, TEXT)), droppable=True)
        self.agent.tell_position()
        if self.coordinator is not None and not heard:
            self.coordinator.damaged(name, why, objects)
        self.checkpointer.saved.report_newest()
        if self.rank == 0 and self.schedule.damaged(self.clock.monotonic()):
            log.info(
                "spotguard makes a background checkpoint at the next step: checkpoint %s is damaged", name
            )

    # --- the end ---

    def forget(self, trains: Callable[[], object]) -> None:
        """Drop everything in a forked child, which is not the guarded process.

        Args:
            trains: called before each step of a registered optimizer.
        """
        self.state.forget(trains)
        if self.channel is not None:
            self.channel.forget()
        self.agent.forget()

    def close(self) -> None:
        """Let training pass the gate, and leave the other ranks and the agent. The savers have ended, or were never made."""
        self.agent.end()
        self.gate.retire()
        self.state.close()
        if self.coordinator is not None:
            self.coordinator.close()
        self.agent.close()
        join_ended()
