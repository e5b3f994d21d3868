"""The coordinator: this rank's link to the other ranks. Its agent's notices become calls to all; calls become saves here.

The coordinator decides nothing. A call is an event in a log that every rank reads in the same order. `consensus.job_state` adds
up the events. One rank writes, for all ranks, the decision that answers an event.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256

from ....providers.clock import Clock
from ....providers.errors import SpotguardError
from ...checkpoint.ranking import counts
from ...consensus.channel import Channel
from ...consensus.events import (
    BackgroundEvent,
    BoundaryEvent,
    CarriedEvent,
    FailedEvent,
    LogEvent,
    ManualEvent,
    NoticeEvent,
    RevoteEvent,
    WithdrawnEvent,
)
from ...consensus.failover import side
from ...consensus.job_state import JobState
from ...consensus.topology import Host, gather_holdings, holding, machines_to_watch
from ...consensus.vote import Decision, Vote, ranges, shared
from ...ipc import protocol
from ...ipc.notice import BY_HAND, PreemptionNotice, alarm_of
from ...save.cancel_scope import Abandoned
from ...save.checkpointer import Checkpointer
from ...save.plan.budget import early
from ...save.plan.partitioner import RankRoles
from ...save.request import SaveRequest, SaveSpec, Weights
from ...state.state import State
from ..report import MessageSender, Report
from ..requests import SaveRequests
from .callers import CallerPool

log = logging.getLogger("spotguard")

#: The place of the weights in a save, by the decision's level.
_WEIGHTS: dict[str, Weights] = {"full": "with the rest", "weights-first": "first", "weights-early": "early"}
#: Seconds that a staying machine gives its own save: a little less than its agent gives, and far more than any save takes. It is
#: not the deadline of any machine.
STAYS = 590.0
#: Seconds for which a rank may still write after its machine's deadline: clouds are late more often than early.
_LATE = 10.0
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
        self._send = send
        self._machine = channel.machines[channel.rank]
        #: Added to this machine's notice ids. Two machines may get notices of one id: AWS's notice contains only the time.
        self._tag = f"@{sha256(self._machine.encode()).hexdigest()[:8]}"
        #: The active calls of other machines, by id. The agent gets them on each connection.
        self._foreign: dict[str, protocol.PeerPreempted] = {}
        self._agent_knows = False
        self._lock = threading.Lock()  # guards what follows
        #: The notices that this machine's own agent delivered, by id.
        self._own: dict[str, PreemptionNotice] = {}
        self._called: set[str] = set()
        self._until: dict[str, float] = {}
        self._asking = self._anew = False
        #: Why the state is not to be saved at an error: a rank has told that its values may be wrong.
        self.distrusted = ""
        #: This rank is the first of those that answered the last call, so it logs and reports for all ranks.
        self.speaks = self.first
        #: Ranks whose save has failed, with the reason, by the epoch of the call that asked for the save.
        self._failed: dict[int, dict[int, str]] = {}
        #: This rank's own such reports. Ranks that have left the first store have not read those that were made there.
        #: By whether a save has failed; the other one is that this rank's values may be wrong.
        self._reported: dict[bool, FailedEvent] = {}

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
        self._machines = machines_to_watch(self.channel.machines, self.channel.rank, heartbeats)
        self._callers.begin()
        self.channel.orphan = self._orphaned
        self.channel.listen(self._hear)

    def close(self) -> None:
        """Stop making calls and reading calls."""
        self._callers.close()
        self.channel.close()

    def welcomed(self, knows: bool, heartbeat: str = "") -> None:
        """Send an agent that has connected, for the first time or again, the other machines and their active calls.

        Args:
            knows: the agent knows what a call is. An older agent would drop this process for an unknown message.
            heartbeat: where this agent answers heartbeats; "" for nowhere.
        """
        if heartbeat and self._machines:
            self._send(protocol.WatchMachines(self._machines))
        with self._lock:
            self._agent_knows = knows
            calls = [*self._foreign.values()] if knows else []
        for each in calls:
            self._send(each)

    @property
    def lost(self) -> bool:
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
        preemption = alarm_of(message, self._clock.monotonic())
        if message.kind == protocol.PEER:
            # This process knows the notice from the call itself; or it came after the call, and parks. The agent does not tell
            # whether another machine's agent has seen a stall.
            with self._lock:
                foreign = self._foreign.get(message.id)
            stall = foreign is not None and foreign.kind in protocol.STANDSTILL
            self._saver.emergency(replace(preemption, stall=stall))
            return
        with self._lock:
            # A copy: the saver joins other notices to the object that it gets, and removes them from it.
            self._own.setdefault(message.id, replace(preemption)).join(preemption)
            known = message.id in self._called or any(
                notice.id == message.id + self._tag for notice in self.channel.standing.notices
            )
            self._called.add(message.id)
        self._saver.emergency(preemption)
        if known:
            return
        left, id = message.seconds_left, message.id + self._tag
        call = NoticeEvent(id, message.kind, message.source, left, self._machine, left, message.drill)

        def unheard(why: str) -> None:
            self._saver.unheard(why)
            self._saver.in_turn(lambda: self._nothing_newer(preemption, why))
            if message.drill:
                self._saver.in_turn(lambda: self._saver.release(message.id, why))

        # Where training stands because the machine of the job's store is silent, its launcher waits for this rank's end.
        seconds = left * _CALLING
        self._call(call, min(seconds, _PATIENCE) if preemption.stall else seconds, unheard)

    def withdrawn(self, id: str, why: str) -> None:
        """Handle the withdrawal of a notice, or the end of a drill, by this machine's agent.

        If the notice is another machine's, that machine calls its withdrawal.
        """
        with self._lock:
            ours = id in self._own
        if ours:
            self.over(id, why)
        elif all(id != notice.id for notice in self.channel.standing.notices):
            # The call is void, or was made before this process began: the agent's message came late.
            self._saver.release(id, why)

    def renew(self) -> None:
        """Have the next background checkpoint that this rank calls for refer to no object of an earlier one, on all ranks."""
        self._anew = True

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

        self._call(BackgroundEvent(why, anew=self._anew), _PATIENCE, unheard)
        return True

    def again(self, job: SaveRequest, why: str) -> None:
        def unheard(error: str) -> None:
            if (preemption := job.preemption) is None:
                log.error("nothing is saved: %s; %s", why, error)
            else:  # the agent would wait for an answer until the deadline
                self._saver.in_turn(lambda: self._nothing_newer(preemption, f"{why}; {error}"))

        self._call(BoundaryEvent(job.epoch, why), _PATIENCE, unheard)

    def failed(self, job: SaveRequest, why: str) -> None:
        with self._lock:
            if self._failed.get(job.epoch):
                return  # one failed rank is enough to end all ranks' saves
        self._report_failed(FailedEvent(job.epoch, self.channel.rank, why))

    def _report_failed(self, call: FailedEvent) -> None:
        self._reported[bool(call.epoch)] = call
        self._call(
            call,
            _PATIENCE,
            lambda error: log.debug("no other rank learned that this rank's save failed: %s", error),
        )

    def distrust(self, why: str) -> None:
        """Have no rank save for the errors that follow from this rank's. Returns once the others can read it."""
        until = self._clock.monotonic() + _PATIENCE
        call = self._reported[False] = FailedEvent(0, self.channel.rank, why)
        try:
            self.channel.call(call, lambda: max(0.0, until - self._clock.monotonic()))
        except SpotguardError as error:
            log.debug("no other rank learned that %s: %s", why, error)

    def by_hand(self, step: int) -> None:
        if self.first:
            self._call(ManualEvent(step), _PATIENCE, lambda why: self._saver.unheard_by_hand(step, why))

    def over(self, id: str, why: str) -> None:
        with self._lock:
            ours = self._own.pop(id, None) is not None
            self._called.discard(id)
        call = WithdrawnEvent(id + self._tag if ours else id)
        self._call(call, _PATIENCE, lambda error: self._saver.release(id, f"{why}; {error}"))

    def _call(self, call: LogEvent, seconds: float, unheard: Callable[[str], None]) -> None:
        until = self._clock.monotonic() + seconds

        def run() -> None:
            try:
                self.channel.call(call, lambda: max(0.0, until - self._clock.monotonic()))
            except SpotguardError as error:
                unheard(str(error))
                return
            if self.channel.lost:  # the other ranks read the call, and this rank never will
                unheard("this rank receives no more calls")

        # All ranks read a notice and its withdrawal in the order in which this rank called them.
        self._callers.give(run, until)

    def _orphaned(self) -> None:
        """Have a save that is under way not wait for the rank that is gone with the job's own store."""
        wanted = self.channel.standing.wanted
        if wanted is not None and not side(wanted.epoch):
            with self._lock:
                self._failed.setdefault(wanted.epoch, {}).update(self._gone())

    def _gone(self) -> dict[int, str]:
        """Return the rank that is gone with the job's own store, and why nothing more comes from it.

        This is a guess, because only this rank's connection may have broken. A rank that votes in the second store lives.
        """
        host = self.channel.host if self.channel.orphaned else None
        return {} if host is None else {host: "its process is gone, and the job's store with it"}

    def call_again(self, job: SaveRequest) -> bool:
        left, preemption = job.scope.left(), job.preemption
        if preemption is None or not self._gone() or self.channel.lost or side(job.epoch):
            return False
        if not self.channel.standing.counts(job.epoch) or (left is not None and left < _WORTH):
            return False
        now = self._clock.monotonic()

        def run() -> None:
            until = self._clock.monotonic() + _PATIENCE
            try:
                self.channel.revote(job.epoch, lambda: max(0.0, until - self._clock.monotonic()))
            except SpotguardError as error:
                why = str(error)
                self._saver.in_turn(lambda: self._nothing_newer(preemption, why))

        self._callers.give(run, now)  # a call before this one may wait for a silent store
        return True

    def _nothing_newer(self, preemption: PreemptionNotice, why: str) -> None:
        """Report the newest checkpoint to the agent: this rank can call the others no more.

        On the saver thread, because the report also uploads a record to the store.
        """
        saved, last = self._saver.committed, self._checkpointer.last
        if saved is not None and saved.level != "weights":
            # Committed for a notice of another machine, which took the job's store with it.
            log.debug("step %d is committed, nothing newer is saved: %s", saved.step, why)
            self._report.committed(preemption, saved)
        else:
            self._report.failed(preemption, why, -1 if last is None else last.step)

    # --- from the others, on the mailbox's thread ---

    def _hear(self, epoch: int, call: LogEvent, standing: JobState) -> None:
        match call:
            case NoticeEvent():
                self._noticed(epoch, call, standing)
            case WithdrawnEvent(id=id):
                self._void(id)
            case CarriedEvent():
                self._moved(epoch, call, standing)
            case RevoteEvent():
                self._wanted(epoch, standing)
            case BackgroundEvent() | BoundaryEvent():
                self._asking = False
                if isinstance(call, BackgroundEvent) and call.anew:
                    self._anew = False
                    self._checkpointer.renew()
                self._wanted(epoch, standing, call.why)
            case FailedEvent(epoch=0, rank=rank, why=why):
                self.distrusted = f"on rank {rank} {why}"
            case FailedEvent(epoch=of, rank=rank, why=why):
                with self._lock:
                    self._failed.setdefault(of, {})[rank] = why
            case ManualEvent(step=step):
                if standing.counts(epoch):
                    self._saver.by_hand(step, epoch)

    def _void(self, id: str) -> None:
        with self._lock:
            # Even if another rank of this machine called the withdrawal: the next notice with this id begins anew.
            self._own.pop(self._as_here(id), None)
            self._called.discard(self._as_here(id))
            foreign = self._foreign.pop(id, None) is not None and self._agent_knows
        if foreign:
            self._send(protocol.PeerCancelled(id))
        self._let_go(self._as_here(id))

    def _moved(self, epoch: int, call: CarriedEvent, standing: JobState) -> None:
        """Take up a job state that a rank has carried into the second store.

        If that rank had read less in the first store than this one, a longer one follows, and only a call for votes counts here.
        """
        before = self.channel.standing
        known, there = ({each.id for each in state.notices} for state in (before, standing))
        longer = call.heard >= self.channel.failover.left_at
        for id in known - there if longer else ():
            self._void(id)
        for notice in standing.notices:
            if notice.id not in known and (longer or standing.counts(epoch)):
                self._noticed(epoch, notice, standing)
        self._wanted(epoch, standing)
        if before.carried is None:  # these ranks' reports may be in the first store alone
            for report in [*self._reported.values()]:
                self._report_failed(report)

    def _let_go(self, id: str) -> None:
        release = partial(self._saver.release, id, "the notice was withdrawn, or the drill is over")
        preemption = self._saver.preemption
        if preemption is not None and preemption.kind in protocol.OF_A_RANK:
            # The rank that ended first withdraws the notice. The other ranks first report the outcome of their saves to their
            # agents, and then let go.
            self._saver.in_turn(release)
        else:
            release()

    def _noticed(self, epoch: int, call: NoticeEvent, standing: JobState) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._until[call.machine] = now + call.seconds_left + _LATE
            own = self._own.get(self._as_here(call.id))
        if own is not None:
            preemption = replace(own, ids=[*own.ids])
        else:
            # A launcher ends all its workers at once, and a test is one job: their deadline applies to every machine.
            ours = call.machine == self._machine or call.kind in {BY_HAND, *protocol.OF_A_RANK}
            seconds = call.seconds_left if ours else STAYS
            kind = call.kind if ours else protocol.PEER
            id = self._as_here(call.id)
            # An estimate. This machine's agent may deliver the exact reserve at any moment.
            reserve = seconds / 10 if ours else 0.0
            message = protocol.Preempt(id, seconds, reserve, kind, call.source, call.drill)
            preemption = replace(alarm_of(message, now), stall=call.kind in protocol.STANDSTILL)
            if not ours:
                self._tell_agent(self._called_by(call, standing, now))
        wanted = standing.counts(epoch)
        at_boundary = wanted and standing.wanted is not None and standing.wanted.boundary
        self._saver.emergency(
            preemption, epoch if wanted else 0, at_boundary=at_boundary, departing=self._departing(standing)
        )

    def _as_here(self, id: str) -> str:
        """Return the notice id as this machine's agent knows it. Another machine's id keeps its tag."""
        return id.removesuffix(self._tag)

    def _called_by(self, call: NoticeEvent, standing: JobState, now: float) -> protocol.PeerPreempted:
        machines, gone = self.channel.machines, Host.decode(call.machine)
        staying = (machine for machine in machines if machine not in standing.departing)
        return protocol.PeerPreempted(
            call.id,
            call.kind,
            call.source,
            call.seconds_left,
            now,
            detail="".join(gone.names[:1]),
            drill=call.drill,
            gone=" ".join(gone.names),
            meet=next((address for each in staying if (address := Host.decode(each).address)), ""),
        )

    def _tell_agent(self, called: protocol.PeerPreempted) -> None:
        with self._lock:
            self._foreign[called.id] = called
            knows = self._agent_knows
        if knows:
            self._send(called)

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
            why = f"stands at step {step}" if offer.stands else "answered too late"
            raise Abandoned(f"the other ranks save step {decision.step} without this rank, which {why}")
        return decision

    def _offer(self, job: SaveRequest, step: int | None, *, boundary: bool, parks: bool) -> Vote:
        rank, last = self.channel.rank, self._checkpointer.last
        roles = RankRoles(job.departing)
        cost = self._checkpointer.cost(roles)
        return Vote(
            rank=rank,
            step=step,
            boundary=boundary,
            weights=cost.weights,
            moments=cost.moments,
            rate=cost.rate,
            commit=cost.commit,
            left=job.scope.left() if rank in roles.departing else None,
            last=last.step if last is not None and last.level == "full" else -1,
            plan=shared(self._state.fingerprint()),
            covers=ranges(sorted(self._covered())),
            parks=parks,
            stands=self._saver.no_more_steps or (job.preemption is not None and job.preemption.stall),
            early=step is not None
            and counts(step, self._checkpointer.complete)
            and early(cost.moments, cost.rate),
        )

    def agreed(self, job: SaveRequest, decision: Decision, step: int) -> SaveSpec:
        absent = frozenset(range(self.channel.world)) - frozenset(decision.ranks)
        going = {self.channel.machines[rank] for rank in job.departing}
        with self._lock:
            self._failed = {of: each for of, each in self._failed.items() if of >= job.epoch}
            failed = self._failed.setdefault(job.epoch, {})
            if not side(job.epoch):
                failed.update(self._gone())
            # Only of machines that go: `_until` also holds machines whose notice was withdrawn.
            times = [until for machine, until in self._until.items() if machine in going]
        return SaveSpec(
            step,
            job.epoch,
            RankRoles(job.departing, decision.whole_each, absent),
            speaks=self.speaks,
            side=side(job.epoch),
            weights=_WEIGHTS[decision.level],
            departing_until=max(times, default=self._clock.monotonic() + STAYS),
            failed=failed,
            why=decision.why,
        )

    def _departing(self, standing: JobState) -> frozenset[int]:
        return standing.departing_ranks(self.channel.machines)

    def _covered(self) -> frozenset[int]:
        """Return the ranks whose whole state this rank holds too."""
        mine = holding(self._state)
        return frozenset(rank for rank, theirs in enumerate(self._cards) if theirs.within(mine))
