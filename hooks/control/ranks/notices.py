"""The notices of the job's machines, as this machine knows them: those of its own agent, and those that other machines call.

Its agent gets the latter, because it ends the command on a machine that stays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256

from ....providers.clock import Clock
from ...consensus.channel import Channel
from ...consensus.events import NoticeEvent
from ...consensus.job_state import JobState
from ...consensus.topology import Host
from ...ipc import protocol
from ...ipc.notice import BY_HAND, PreemptionNotice
from ..report import MessageSender

#: Seconds that a staying machine gives its own save: a little less than its agent gives, and far more than any save takes. It is
#: not the deadline of any machine.
STAYS = 590.0
#: Seconds for which a rank may still write after its machine's deadline: clouds are late more often than early.
_LATE = 10.0


class JobNotices:
    """The notices of a job, on one rank.

    Args:
        channel: knows the machines.
        clock: the clock.
        send: sends a message to this machine's agent.
    """

    def __init__(self, channel: Channel, clock: Clock, send: MessageSender) -> None:
        self._channel = channel
        self._clock = clock
        self._send = send
        self._machine = channel.machines[channel.rank]
        #: Added to this machine's notice ids. Two machines may get notices of one id: AWS's notice contains only the time.
        self._tag = f"@{sha256(self._machine.encode()).hexdigest()[:8]}"
        #: The places at which other machines' agents answer heartbeats, by the machine's name (`topology.machines_to_watch`).
        self.to_watch: Mapping[str, str] = {}
        self._lock = threading.Lock()  # guards what follows
        #: The notices that this machine's own agent delivered, by id.
        self._own: dict[str, PreemptionNotice] = {}
        #: The ids of those for which this rank has called.
        self._called: set[str] = set()
        #: The active calls of other machines, by id. The agent gets them on each connection.
        self._foreign: dict[str, protocol.PeerPreempted] = {}
        #: Monotonic seconds until which the ranks of a machine may write.
        self._until: dict[str, float] = {}

    # --- of this machine's agent ---

    def greet(self, heartbeat: str = "") -> None:
        """Send an agent that has connected, for the first time or again, the other machines and their active calls.

        Args:
            heartbeat: where this agent answers heartbeats; "" for nowhere.
        """
        if heartbeat and self.to_watch:
            self._send(protocol.WatchMachines(dict(self.to_watch)))
        with self._lock:
            calls = [*self._foreign.values()]
        for each in calls:
            self._send(each)

    def deliver(self, id: str, preemption: PreemptionNotice) -> bool:
        """Keep a notice that the agent delivered. Return whether the ranks know it, so that no call is needed."""
        with self._lock:
            # A copy: the saver joins other notices to the object that it gets, and removes them from it.
            self._own.setdefault(id, replace(preemption)).join(preemption)
            known = id in self._called or any(
                notice.id == self.id_in_job(id) for notice in self._channel.standing.notices
            )
            self._called.add(id)
        return known

    def is_own(self, id: str) -> bool:
        """Return whether this machine's agent delivered the notice."""
        with self._lock:
            return id in self._own

    def drop(self, id: str) -> str:
        """Forget a notice that this rank calls void. Return its id in the job's log."""
        with self._lock:
            own = self._own.pop(id, None) is not None
            self._called.discard(id)
        return self.id_in_job(id) if own else id

    # --- of the job ---

    def id_in_job(self, id: str) -> str:
        """Return the id, in the job's log, of a notice of this machine."""
        return id + self._tag

    def id_here(self, id: str) -> str:
        """Return the notice id as this machine's agent knows it. Another machine's id keeps its tag."""
        return id.removesuffix(self._tag)

    def noticed(self, call: NoticeEvent, standing: JobState) -> PreemptionNotice:
        """Return the notice of a call as this rank answers it. The agent learns of another machine's.

        Args:
            call: the call.
            standing: the job state after it.
        """
        now = self._clock.monotonic()
        with self._lock:
            self._until[call.machine] = now + call.seconds_left + _LATE
            own = self._own.get(self.id_here(call.id))
        if own is not None:
            return replace(own, ids=[*own.ids])
        # A launcher ends all its workers at once, and a test is one job: their deadline applies to every machine.
        ours = call.machine == self._machine or call.kind in {BY_HAND, *protocol.OF_A_RANK}
        seconds = call.seconds_left if ours else STAYS
        kind = call.kind if ours else protocol.PEER
        # An estimate. This machine's agent may deliver the exact reserve at any moment.
        reserve = seconds / 10 if ours else 0.0
        message = protocol.Preempt(self.id_here(call.id), seconds, reserve, kind, call.source, call.drill)
        if not ours:
            self._tell_agent(self._called_by(call, standing, now))
        return replace(PreemptionNotice.received(message, now), stall=call.kind in protocol.STALL_KINDS)

    def is_stall_elsewhere(self, id: str) -> bool:
        """Return whether another machine called a notice because training stands still."""
        with self._lock:
            foreign = self._foreign.get(id)
        return foreign is not None and foreign.kind in protocol.STALL_KINDS

    def void(self, id: str) -> str:
        """Forget a notice that a call has ended, and tell the agent of another machine's. Return its id here."""
        here = self.id_here(id)
        with self._lock:
            # Even if another rank of this machine called the withdrawal: the next notice with this id begins anew.
            self._own.pop(here, None)
            self._called.discard(here)
            foreign = self._foreign.pop(id, None) is not None
        if foreign:
            self._send(protocol.PeerCancelled(id))
        return here

    def departing_until(self, machines: Iterable[str]) -> float:
        """Return the monotonic seconds until which the ranks of these machines may write; `STAYS` from now if none goes."""
        with self._lock:
            # Only of machines that go: `_until` also holds machines whose notice was withdrawn.
            times = [self._until[machine] for machine in machines if machine in self._until]
        return max(times, default=self._clock.monotonic() + STAYS)

    def _called_by(self, call: NoticeEvent, standing: JobState, now: float) -> protocol.PeerPreempted:
        gone = Host.decode(call.machine)
        staying = (machine for machine in self._channel.machines if machine not in standing.departing)
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
        self._send(called)
