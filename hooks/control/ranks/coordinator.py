"""The coordinator: this rank's link to the other ranks. Its agent's notices become calls to all; calls become saves here.

The coordinator decides nothing. A call is an event in a log that every rank reads in the same order. `consensus.job_state` adds
up the events. One rank writes, for all ranks, the decision that answers an event.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from ....providers.clock import Clock
from ....providers.errors import SpotguardError
from ....providers.text import TEXT, clip, key_list
from ...checkpoint.format.keys import CheckpointName
from ...checkpoint.ranking import counts
from ...commit.cancel_scope import Abandoned
from ...commit.plan.partitioner import RankRoles
from ...consensus import events
from ...consensus.channel import Channel
from ...consensus.failover import side
from ...consensus.job_state import JobState
from ...consensus.stores.connection import within
from ...consensus.topology import covered, gather_holdings, holding, machines_to_watch
from ...consensus.vote import Decision, Vote, ranges, shared
from ...ipc import protocol
from ...ipc.notice import PreemptionNotice
from ...save.checkpointer import Checkpointer
from ...save.emergency.budget import early
from ...save.request import SaveRequest, SaveSpec, Weights
from ...state.state import State
from ..report import MessageSender, Report
from ..save_requests import SaveRequests
from .callers import CallerPool
from .failed_ranks import FailedRanks
from .notices import JobNotices

log = logging.getLogger("spotguard")

#: The place of the weights in a save, by the decision's level.
_WEIGHTS: dict[str, Weights] = {"full": "with the rest", "weights-first": "first", "weights-early": "early"}
#: The share of a notice's time that calling the other ranks may take: they answer in milliseconds.
_CALLING = 0.3
#: Seconds that any other call may take.
_PATIENCE = 10.0
#: Seconds that must be left for a save that begins again without the rank that served the job's store.
_WORTH = 1.0


class Coordinator:
    """This rank's link to the other ranks; implements `quiesce.JobCoordinator`. It reads calls from `begin` on.

    Args:
        channel: the ranks' log and votes.
        clock: the clock.
        send: sends a message to this machine's agent.
    """

    def __init__(self, channel: Channel, clock: Clock, send: MessageSender) -> None:
        self.channel = channel
        self._clock = clock
        self._callers = CallerPool(clock)
        self.notices = JobNotices(channel, clock, send)
        self.failed_ranks = FailedRanks(channel)
        self._lock = threading.Lock()  # guards `_asking`
        self._asking = False
        #: This rank's own reports of damage. Ranks that have left the first store have not read those that were made there.
        self._damages: list[events.DamagedEvent] = []
        #: This rank is the first of those that answered the last call, so it logs and reports for all ranks.
        self.speaks = self.first

    def begin(
        self,
        saver: SaveRequests,
        checkpointer: Checkpointer,
        state: State,
        report: Report,
        heartbeat: str = "",
    ) -> None:
        """Start to read calls.

        Args:
            heartbeat: where this machine's agent answers the heartbeats of other machines' agents; "" for nowhere.
        """
        self._saver = saver
        self._checkpointer = checkpointer
        self._state = state
        self._report = report
        self._cards, heartbeats = gather_holdings(self.channel, state, heartbeat)
        self.notices.to_watch = machines_to_watch(self.channel.machines, self.channel.rank, heartbeats)
        self._callers.begin()
        self.channel.orphan = self.failed_ranks.orphaned
        self.channel.listen(self._hear)

    def close(self) -> None:
        """Stop making calls and reading calls."""
        self._callers.close()
        self.channel.close()

    @property
    def orphaned(self) -> bool:
        return self.channel.orphaned

    def counts(self, epoch: int) -> bool:
        return self.channel.counts(epoch)

    @property
    def first(self) -> bool:
        """Whether this is the first rank, which calls for the job where one rank must."""
        return self.channel.rank == 0

    # --- to the others ---

    def notice(self, message: protocol.Preempt) -> None:
        """Save for a notice that this machine's agent delivered, or for its earlier deadline, and call the other ranks."""
        preemption = PreemptionNotice.received(message, self._clock.monotonic())
        if message.kind == protocol.PEER:
            # This process knows the notice from the call itself; or it came after the call, and parks. The agent does not tell
            # whether another machine's agent has seen a stall.
            stall = self.notices.is_stall_elsewhere(message.id)
            self._saver.emergency(replace(preemption, stall=stall))
            return
        known = self.notices.deliver(message.id, preemption)
        self._saver.emergency(preemption)
        if known:
            return
        left, id = message.seconds_left, self.notices.id_in_job(message.id)
        machine = self.channel.machines[self.channel.rank]
        # Read after `emergency`: a save that has not ended yet answers this notice, too.
        ended = self._saver.ended
        call = events.NoticeEvent(
            id, message.kind, message.source, left, machine, left, message.drill, ended=ended
        )

        def unheard(why: str) -> None:
            self._saver.unheard(why)
            self._give_up(preemption, why)
            if message.drill:
                self._saver.in_turn(lambda: self._saver.release(message.id, why))

        # Where training stands because the machine of the job's store is silent, its launcher waits for this rank's end.
        seconds = left * _CALLING
        self._call(call, min(seconds, _PATIENCE) if preemption.stall else seconds, unheard)

    def withdrawn(self, id: str, why: str) -> None:
        """Handle the withdrawal of a notice, or the end of a drill, by this machine's agent.

        If the notice is another machine's, that machine calls its withdrawal.
        """
        if self.notices.is_own(id):
            self.over(id, why)
        elif all(id != notice.id for notice in self.channel.standing.notices):
            # The call is void, or was made before this process began: the agent's message came late.
            self._saver.release(id, why)

    def damaged(self, name: CheckpointName, why: str, objects: Collection[str]) -> None:
        """Tell all ranks that a checkpoint cannot be restored, and which objects of it are damaged. Returns at once."""
        call = events.DamagedEvent(str(name), clip(why, TEXT), key_list(objects))
        self._damages.append(call)
        self._tell(call)

    def _tell(self, call: events.DamagedEvent | events.FailedEvent) -> None:
        """Tell all ranks what this one has found. Returns at once."""
        level, what = logging.DEBUG, "this rank's save failed"
        if isinstance(call, events.DamagedEvent):
            level, what = logging.WARNING, f"checkpoint {call.checkpoint} is damaged"
        self._call(
            call, _PATIENCE, lambda why: log.log(level, "no other rank learned that %s: %s", what, why)
        )

    def background(self, why: str) -> bool:
        """Call for a checkpoint beside training. Returns at once; False if this rank cannot call, or has called already."""
        if not self._saver.idle or self.channel.lost:
            return False  # the others would wait for an offer of this rank, which makes none
        with self._lock:
            if self._asking:
                return False
            self._asking = True

        def unheard(why: str) -> None:
            self._asking = False
            log.warning("spotguard makes no background checkpoint: %s [SG507]", why)

        self._call(events.BackgroundEvent(why), _PATIENCE, unheard)
        return True

    def again(self, job: SaveRequest, why: str) -> None:
        def unheard(error: str) -> None:
            if (preemption := job.preemption) is None:
                log.error("nothing is saved: %s; %s", why, error)
            else:  # the agent would wait for an answer until the deadline
                self._give_up(preemption, f"{why}; {error}")

        self._call(events.BoundaryEvent(job.epoch, why), _PATIENCE, unheard)

    def failed(self, job: SaveRequest, why: str) -> None:
        if not self.failed_ranks.any(job.epoch):
            self._tell(self.failed_ranks.report(job.epoch, why))

    def distrust(self, why: str) -> None:
        """Have no rank save for the errors that follow from this rank's. Returns once the others can read it."""
        call = self.failed_ranks.report(0, why)
        try:  # this process ends soon, perhaps with the job's own store in it
            self.channel.call(call, within(self._clock, _PATIENCE), ends=True)
        except SpotguardError as error:
            log.debug("no other rank learned that %s: %s", why, error)

    def by_hand(self, step: int) -> None:
        if self.first:
            self._call(events.ManualEvent(step), _PATIENCE, partial(self._saver.manual_saves.unheard, step))

    def over(self, id: str, why: str) -> None:
        call = events.WithdrawnEvent(self.notices.drop(id))
        self._call(call, _PATIENCE, lambda error: self._saver.release(id, f"{why}; {error}"))

    def _call(self, call: events.LogEvent, seconds: float, unheard: Callable[[str], None]) -> None:
        left = within(self._clock, seconds)

        def run() -> None:
            try:
                self.channel.call(call, left)
            except SpotguardError as error:
                unheard(str(error))
                return
            if self.channel.lost:  # the other ranks read the call, and this rank never will
                unheard("this rank receives no more calls")

        # All ranks read a notice and its withdrawal in the order in which this rank called them.
        self._callers.give(run, self._clock.monotonic() + seconds)

    def revote(self, job: SaveRequest) -> bool:
        left, preemption = job.scope.left(), job.preemption
        if preemption is None or not self.failed_ranks.gone() or self.channel.lost or side(job.epoch):
            return False
        if not self.channel.standing.counts(job.epoch) or (left is not None and left < _WORTH):
            return False

        def run() -> None:
            try:
                self.channel.revote(job.epoch, within(self._clock, _PATIENCE))
            except SpotguardError as error:
                self._give_up(preemption, str(error))

        self._callers.give(run, self._clock.monotonic())  # a call before this one may wait for a silent store
        return True

    def _give_up(self, preemption: PreemptionNotice, why: str) -> None:
        """Have the newest checkpoint reported to the agent: this rank can call the others no more."""

        def report() -> None:
            saved, last = self._saver.committed, self._checkpointer.last
            if saved is not None and saved.level != "weights":
                # Committed for a notice of another machine, which took the job's store with it.
                log.debug("step %d is committed, nothing newer is saved: %s", saved.step, why)
                self._report.committed(preemption, saved)
            else:
                self._report.failed(preemption, why, -1 if last is None else last.step)

        # On the saver thread, because the report also uploads a record to the store.
        self._saver.in_turn(report)

    # --- from the others, on the mailbox's thread ---

    def _hear(self, epoch: int, call: events.LogEvent, standing: JobState) -> None:
        match call:
            case events.NoticeEvent():
                self._noticed(epoch, call, standing)
            case events.WithdrawnEvent(id=id):
                self._let_go(id)
            case events.CarriedEvent():
                self._moved(epoch, call, standing)
            case events.RevoteEvent():
                self._wanted(epoch, standing)
            case events.BackgroundEvent() | events.BoundaryEvent():
                self._asking = False
                self._wanted(epoch, standing, call.why)
            case events.FailedEvent():
                self.failed_ranks.heard(call)
            case events.DamagedEvent(checkpoint=checkpoint, why=why, objects=objects):
                if (name := CheckpointName.parse(checkpoint)) is not None:
                    self._checkpointer.damage.add(name, why, objects.split(), heard=True)
            case events.ManualEvent(step=step):
                if standing.counts(epoch):
                    self._saver.by_hand(step, epoch)

    def _moved(self, epoch: int, call: events.CarriedEvent, standing: JobState) -> None:
        """Take up a job state that a rank has carried into the second store.

        If that rank had read less in the first store than this one, a longer one follows, and only a call for votes counts here.
        """
        before = self.channel.standing
        known, there = ({each.id for each in state.notices} for state in (before, standing))
        longer = call.heard >= self.channel.failover.left_at
        for id in known - there if longer else ():
            self._let_go(id)
        for notice in standing.notices:
            if notice.id not in known and (longer or standing.counts(epoch)):
                self._noticed(epoch, notice, standing)
        self._wanted(epoch, standing)
        if before.carried is None:  # these ranks' reports may be in the first store alone
            reports: list[events.DamagedEvent | events.FailedEvent] = [*self.failed_ranks.reported]
            for report in [*reports, *self._damages]:
                self._tell(report)

    def _let_go(self, id: str) -> None:
        here = self.notices.void(id)
        release = partial(self._saver.release, here, "the notice was withdrawn, or the drill is over")
        preemption = self._saver.preemption
        if preemption is not None and preemption.kind in protocol.OF_A_RANK:
            # The rank that ended first withdraws the notice. The other ranks first report the outcome of their saves to their
            # agents, and then let go.
            self._saver.in_turn(release)
        else:
            release()

    def _noticed(self, epoch: int, call: events.NoticeEvent, standing: JobState) -> None:
        preemption = self.notices.noticed(call, standing)
        wanted = standing.counts(epoch)
        at_boundary = wanted and standing.wanted is not None and standing.wanted.boundary
        self._saver.emergency(
            preemption, epoch if wanted else 0, at_boundary=at_boundary, departing=self._departing(standing)
        )
        ended, counting = self._saver.ended, standing.wanted
        ours = call.kind in protocol.STALL_KINDS and call.machine == self.channel.machines[self.channel.rank]
        if ours and counting is not None and ended >= counting.epoch:
            # Another rank of this machine has joined the stall to a save that this one has ended, and nothing would answer it here.
            self._call(replace(call, ended=ended), _PATIENCE, partial(self._give_up, preemption))

    def _wanted(self, epoch: int, standing: JobState, why: str = "") -> None:
        wanted = standing.wanted
        if wanted is None or wanted.epoch != epoch:
            return
        if wanted.cause == "notice":
            self._saver.again(epoch, self._departing(standing), at_boundary=wanted.boundary)
        elif wanted.cause == "background":
            self._saver.background(epoch, at_boundary=wanted.boundary)
        else:
            self._saver.fail_by_hand(why)

    # --- for the saver thread ---

    def decide(
        self,
        job: SaveRequest,
        step: int | None,
        left: Callable[[], float],
        over: Callable[[], bool],
        *,
        boundary: bool,
        parks: bool,
    ) -> Decision:
        channel = self.channel
        try:
            offer = self._offer(job, step, boundary=boundary, parks=parks)
        except Exception:  # a bug in spotguard must not keep all ranks waiting for an offer
            log.exception("internal error; please report it [SG704]")
            offer = Vote(channel.rank, None)
        decision = channel.agree(job.epoch, offer, left, over)
        self.speaks = channel.rank == min(decision.ranks, default=0)
        if decision.step is not None and channel.rank not in decision.ranks:
            why = f"stands at step {step}" if offer.final else "answered too late"
            raise Abandoned(f"the other ranks save step {decision.step} without this rank, which {why}")
        return decision

    def _offer(self, job: SaveRequest, step: int | None, *, boundary: bool, parks: bool) -> Vote:
        rank, last = self.channel.rank, self._checkpointer.last
        cost = self._checkpointer.cost(RankRoles(job.departing))
        return Vote(
            rank=rank,
            step=step,
            boundary=boundary,
            weights=cost.weights,
            moments=cost.moments,
            rate=cost.rate,
            commit=cost.commit,
            left=job.scope.left() if rank in job.departing else None,
            last=last.step if last is not None and last.level == "full" else -1,
            plan=shared(self._state.fingerprint),
            covers=ranges(covered(self._cards, holding(self._state))),
            parks=parks,
            final=self._saver.no_more_steps or (job.preemption is not None and job.preemption.stall),
            early=step is not None
            and counts(step, self._checkpointer.saved.complete)
            and early(cost.moments, cost.rate),
        )

    def agreed(self, job: SaveRequest, decision: Decision, step: int) -> SaveSpec:
        absent = frozenset(range(self.channel.world)) - frozenset(decision.ranks)
        going = {self.channel.machines[rank] for rank in job.departing}
        return SaveSpec(
            step,
            job.epoch,
            RankRoles(job.departing, decision.whole_each, absent),
            speaks=self.speaks,
            side=side(job.epoch),
            weights=_WEIGHTS[decision.level],
            departing_until=self.notices.departing_until(going),
            failed=self.failed_ranks.begin(job.epoch),
            why=decision.why,
        )

    def _departing(self, standing: JobState) -> frozenset[int]:
        return standing.departing_ranks(self.channel.machines)
