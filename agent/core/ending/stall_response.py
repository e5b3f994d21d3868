"""A run that stands still: its stacks are kept and its state is saved. If it stands for good, `--recover` says what follows.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal
from dataclasses import replace

from ....providers.notice import Notice, NoticeKind
from ...actions import ExcludeMachine, LookAtProcess, ReadStacks, RecordFailure, ReportEvent, SignalSession
from ...outcome import BROKEN_OFF
from ..command import CommandGroup
from ..delivery import HELD, Delivery
from ..failures.errors import FailureLog
from ..failures.recovery import Recovery, RecoveryDecision
from ..failures.stall import Stall, StallWatch
from ..preemption import Preemption
from ..session import Session, Sessions
from ..state import RecoveryAction, Turn
from .sigterm import leaving_notice

#: Seconds in which the state of a run that stands still is saved: longer than its upload takes on a slow link.
STALL_WINDOW = 600.0
#: Seconds in which training that stands still has to end. Its state was saved before, if it could be.
RESTART_WINDOW = 60.0


class StallResponse:
    """The answer to training that stands still, from the save to the end of the command."""

    def __init__(
        self,
        turn: Turn,
        sessions: Sessions,
        command: CommandGroup,
        delivery: Delivery,
        stalls: StallWatch,
        failures: FailureLog,
        recovery: Recovery,
    ) -> None:
        self._turn = turn
        self._sessions = sessions
        self._command = command
        self._delivery = delivery
        self._stalls = stalls
        self._failures = failures
        self._recovery = recovery
        #: The decision about the training that stood still last.
        self.decision = RecoveryDecision(RecoveryAction.STOP, "")
        #: Sessions that were killed so that their launcher starts the ranks again.
        self._killed: set[int] = set()

    def watch(self) -> None:
        """Do what is due: look at silent processes, and answer a run that stands still, or that moves again."""
        for silent in self._stalls.unheard(self._turn.now):
            self._turn.do(LookAtProcess(silent.number, silent.pid))
        for session, seconds in self._stalls.resumed():
            self._turn.do(ReportEvent("moving", {"run_id": session.run_id, "seconds": round(seconds, 1)}))
            self._turn.log(f"run {session.run_id} moves again at step {session.step}, after {seconds:.0f} s")
            p = self._delivery.active
            if p is not None and p.stall and p.runs == {session.run}:
                self._delivery.rehearsed(p, f"{BROKEN_OFF}: training moves again")
        if self._delivery.active is None and not self._turn.stopping:
            for stall in self._stalls.due(self._turn.now):
                then = f"the stacks lie below {stall.session.run_id}/stalls; {self._turn.policy.after_stall}"
                self._turn.do(ReportEvent("stall", {**stall.facts(), "then": then}))
                self._save(stall)
                return  # one at a time; another run's comes when this one is saved
            if self._recovery.acts_on("stall") and (lasts := self._stalls.lasting(self._turn.now)):
                self._end(lasts)

    # --- the save ---

    def _save(self, stall: Stall) -> None:
        """Have a run that stands still keep its stacks and save its state. Nothing is ended for it."""
        now, session = self._turn.now, stall.session
        modes = {
            each.position.mode
            for each in self._sessions.open.values()
            if each.run == session.run and each.position
        }
        if "boundary" in modes:
            text = "its state cannot be saved where it stands, because saves wait for the next guard.step() [SG406]"
            self._turn.log(f"training stands still: {stall.text()}; {text}", logging.WARNING)
            self._read_stacks(stall)
            return
        notice = self._notice(NoticeKind.STALL, stall, STALL_WINDOW)
        p = Preemption(notice, now, self._turn.policy.reserve, rehearsal=True, uid=session.uid)
        p.runs = {session.run}
        self._delivery.start(p, stall.held)
        self._read_stacks(stall)
        self._delivery.advance_rehearsal(p)  # if no rank can answer, nothing more comes

    def _notice(self, kind: NoticeKind, stall: Stall, window: float) -> Notice:
        now, session = self._turn.now, stall.session
        id = f"{kind}-{session.run_id}-{session.step}-{now:.0f}"
        return Notice(id, kind, "spotguard", now + window, now, detail=stall.text(), window=window)

    def _read_stacks(self, stall: Stall) -> None:
        """Have the stacks of ranks that cannot read their own be read, if this agent has what their command has."""
        held = [each for number, each in self._sessions.open.items() if number in stall.held]
        for session in held:
            self._turn.log(f"{session.who} cannot save: {HELD}", logging.WARNING)
        if held and self._turn.policy.command:
            ranks = {each.pid: (each.rank, each.position.attempt if each.position else -1) for each in held}
            self._turn.do(ReadStacks(held[0].run_id, held[0].store, stall.session.step, ranks))

    # --- the end of training that stands for good ---

    def _end(self, stall: Stall) -> None:
        """End training that stands still for good, as `--recover` asks for. Its state was saved when the stall was reported, if it could be."""
        session = self._sessions.open.get(stall.session.number)
        if session is None or not self._command.running:
            return  # processes that a launcher left behind end by its end, and with its exit code
        if session.number in self._killed:  # by this method, at the stall before
            self.decision = RecoveryDecision(RecoveryAction.RESTART, "its launcher did not start it again")
            self._name_others(session)
            self._restart(stall)
            return
        decision = self.decision = self._recovery.decide("stall")
        self._turn.log(f"training is still stuck: {stall.text()}: {decision.why}", logging.ERROR)
        cause = self._failures.stood(session, f"training stood still: {stall.text()}")
        if decision.action is not RecoveryAction.RESTART:
            self._turn.do(ReportEvent("failure", cause.facts()))
        elif self._turn.policy.launcher_restarts:
            # Only one may start ranks again. torchrun starts all of them once one is gone.
            self._killed.add(session.number)
            self._turn.log(f"{session.who} is killed, so that its launcher starts the ranks again")
            self._turn.do(SignalSession(session.number, signal.SIGKILL))
            ended = f"{session.who} was killed, so that its launcher starts the ranks again"
            self._turn.do(RecordFailure(replace(cause, text=ended).facts()))
            return
        self._name_others(session)
        if decision.action is RecoveryAction.STOP:
            # The other machines of the job are not asked to start again: they lose a peer, as at a crash.
            self._command.end_for(decision)
        elif decision.action is RecoveryAction.LEAVE:
            self._delivery.noticed(leaving_notice(self._turn, decision.why))
            exclude(self._turn, decision.why, "stall", stall.machine or ("" if stall.here else None))
        else:
            self._restart(stall)

    def _name_others(self, session: Session) -> None:
        """Log the other runs of the command, which end too: it has only one process group."""
        if others := self._sessions.beside(session.run):
            named = f"other runs of the command end with run {session.run_id}: {', '.join(others)}"
            self._turn.log(named, logging.WARNING)

    def _restart(self, stall: Stall) -> None:
        """End the command, so that it can start again. The ranks of other machines learn of it as of a notice, and do the same."""
        notice = self._notice(NoticeKind.RESTART, stall, RESTART_WINDOW)
        self._delivery.start(Preemption(notice, self._turn.now, self._turn.policy.reserve), stall.held)


def exclude(turn: Turn, why: str, kind: str, machine: str | None, *, broken: bool = False) -> None:
    """Log how the job goes on without the machine that failed, and name it for whoever starts the job again.

    Args:
        why: the rule by which this machine is left.
        kind: the class of the failure.
        machine: the machine that failed; "": this one; None: it is not known here.
        broken: whether the error itself names broken hardware. Training that stands still is no such evidence: on a file system that
            hangs, ranks of every machine wait for no other rank.
    """
    policy = turn.policy
    labels = policy.node and machine == "" and broken
    goes_on = f"{why}: exit code {policy.exit_code}, so that the job goes on elsewhere"
    if machine is None:
        then = "the machine that failed is not known here: exclude it in your scheduler"
    elif policy.excludes or labels:
        named = f"{machine or 'this machine'} is named in --exclude-file"
        labelled = f"node {policy.node} is labelled, if the cluster permits it"
        ways = (policy.excludes, named), (labels, labelled)
        then = ", and ".join(text for used, text in ways if used)
        turn.do(ExcludeMachine(machine, kind, broken))
    else:
        then = (
            f"exclude {machine or 'this machine'} in your scheduler (Slurm, once the job waits again: scontrol update "
            "JobId=ID ExcNodeList=NODE)"
        )
    if policy.node and machine == "" and not broken:
        then += f"; node {policy.node} is not labelled, because nothing shows that its hardware is broken"
    turn.log(f"{goes_on}; {then}", logging.ERROR)
