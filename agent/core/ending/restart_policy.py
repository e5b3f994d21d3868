"""The step after the command's end: another start, a wait for it, or the exit of `spotguard run`.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal

from ....hooks.ipc.failure_classes import is_broken_hardware
from ....providers.notice import NoticeKind
from ....providers.text import span
from ...actions import ReportEvent, Rest
from ...events import CommandEnded
from ..command import OUTLIVED, Command, CommandGroup, Restart
from ..delivery import Delivery
from ..failures.errors import FailureCause
from ..failures.recovery import Recovery, RecoveryDecision
from ..peers import Peers
from ..preemption import EndState, Preemption
from ..state import RecoveryAction, Turn
from .shutdown import Shutdown
from .sigterm import BY_HAND
from .stall_response import StallResponse, exclude

#: Seconds after the command's end in which the last messages of its sessions may still be read from their sockets.
LINGER = 0.5
#: Seconds between a command that ended before its peers were there, and its next start.
PAUSE = 1.0
#: A notice seen within this many seconds after the launch counts as older than it: a first poll takes a second, or a time-out
#: or two.
FIRST_LOOK = 10.0
#: `EX_CONFIG`: every checkpoint is damaged (`hooks.restore.begin_anew`). Another start would find the same.
BEYOND_US = 78
#: Kinds of notices that announce no machine's end.
OF_A_PERSON = frozenset({NoticeKind.SIGNAL, NoticeKind.DRILL, NoticeKind.ORPHAN})


class RestartPolicy:
    """Decides about the next start, once the command has ended and nothing of it is left."""

    def __init__(
        self,
        turn: Turn,
        command: CommandGroup,
        restart: Restart,
        delivery: Delivery,
        peers: Peers,
        shutdown: Shutdown,
        recovery: Recovery,
        stall_response: StallResponse,
    ) -> None:
        self._turn = turn
        self._command = command
        self._restart = restart
        self._delivery = delivery
        self._peers = peers
        self._shutdown = shutdown
        self._recovery = recovery
        self._stall_response = stall_response
        #: Restarts after failures.
        self.count = 0

    def end_wait(self) -> None:
        """Start the command again, or exit, if the wait for that is over."""
        if self._turn.finish is not None or self._restart.at is None or self._turn.now < self._restart.at:
            return
        if self._restart.reason:
            self._relaunch(self._restart.reason, self._restart.failure)
        elif self._turn.policy.outlive:
            self._relaunch("this machine is still here", self._restart.failure)
        else:
            self._turn.exit(self._turn.policy.exit_code)

    def end_repeats(self) -> None:
        """End a launcher that starts its ranks again by itself, once they have met the same error at the same step twice."""
        command = self._command.current
        if command is None or not (self._command.running and self._turn.policy.launcher_restarts):
            return
        if command.decision is not None or self._delivery.active is not None or self._turn.stopping:
            return
        if (found := self._recovery.repeated()) is not None:
            cause, decision = found
            self._log_failure(cause, decision, None)
            self._command.end_for(decision)

    def conclude(self, command: Command) -> None:
        p = self._delivery.active
        if p is not None and p.rehearsal:
            self._delivery.rehearsed(p, "the command ended")
            p = None
        if p is None:
            self._after_end(command)
        elif not self._still_talking(p, command) and self._nothing_left(p, command):
            self._after_notice(p, command)

    def _still_talking(self, p: Preemption, command: Command) -> bool:
        """Return whether last messages are on their way, or a process that the launcher left behind still saves."""
        for part in p.parts.values():
            # A socket closes during the exit, before the agent can see that its process is gone.
            part.dead = part.dead or (part.closed and part.session.pid == command.pid)
        if self._turn.now < command.ended_at + LINGER:
            if any(part.open for part in p.parts.values()):
                return True
        else:
            for part in p.parts.values():
                part.dead = part.dead or part.session.pid == command.pid
        if p.end_state is EndState.KILLED or self._turn.stopping or self._turn.now >= p.limit:
            return False
        if p.return_by is not None:
            return True
        return any(not part.done for part in p.parts.values())

    def _nothing_left(self, p: Preemption, command: Command) -> bool:
        """Return whether no process of the command is left that the next start would meet.

        A command that ended by itself with exit code 0 need not be clear.
        """
        if p.end_state is EndState.KILLED or (self._turn.stopping and self._turn.force_at is None):
            return True
        if command.returncode == 0 and not (p.signalled or p.ending or p.of_orphan):
            if any(not part.done for part in p.parts.values()):
                self._command.kill_all()  # the launcher is gone, and the processes it left behind are out of time
            return True
        self._shutdown.saves_are_over(p)
        limit = p.limit if self._turn.force_at is None else min(p.limit, self._turn.force_at)
        return self._shutdown.cleared(command, limit)

    def _after_notice(self, p: Preemption, command: Command) -> None:
        """Publish the outcome of a notice after the command's end, and decide what comes next."""
        returncode = None if p.of_orphan else command.returncode
        asked = p.signalled or p.ending
        instead = command.exit_code if returncode else None  # it was killed for a failure before the notice
        if self._turn.interrupted and (returncode or asked):
            instead = 128 + signal.SIGINT  # with 75, a shell's loop would go on
        if instead is not None:
            self._delivery.publish(p, p.ended, returncode, instead)
            self._delivery.forget(p)
            self._turn.exit(instead, p.limit)
            return
        code = 0 if returncode == 0 and not asked else self._turn.policy.exit_code
        if p.stays and p.restarts and self._turn.stopping and returncode:
            code = (
                returncode if returncode > 0 else 128 - returncode
            )  # no machine goes: a person has ended it
        if code != 0 and p.stays and not self._turn.stopping:
            if p.parts or p.signalled or not p.of_orphan:  # else there was no process to end
                self._delivery.publish(p, p.ended, returncode, None)
            self._delivery.forget(p)
            if p.restarts:
                self._go_on_after_stall(p)
            else:
                self._start_here(p)
            return
        outlive = code != 0 and self._turn.policy.outlive and not self._turn.stopping
        outlive = outlive and (p.withdrawn or (p.machine_goes and not self._turn.terms))
        self._delivery.publish(p, p.ended, returncode, None if outlive else code)
        self._delivery.forget(p)
        if outlive and p.withdrawn:
            self._relaunch("the notice was withdrawn")
        elif outlive:
            self._wait_out(p, OUTLIVED)
        elif code != 0 and self._began_in_vain(p, command):
            self._wait_out(p, 0.0)
            self._turn.log(
                f"the notice came before anything was trained: waiting {p.machine_deadline - self._turn.now:.1f} s, until its "
                f"deadline, before exit code {code}, or a restart would find it again at once. SIGTERM or Ctrl-C: exit now",
                logging.WARNING,
            )
        else:
            self._turn.exit(code, p.limit)

    def _start_here(self, p: Preemption) -> None:
        """Start the job again at once, because this machine stays. This does not count as a crash."""
        if p.of_orphan:
            self._relaunch("no training of the spotguard run that was killed is left")
            return
        self._peers.rejoin()
        self._relaunch("another machine of the job was noticed, this one stays")

    def _began_in_vain(self, p: Preemption, command: Command) -> bool:
        """Return whether the notice came before anything was trained on this machine.

        A shell's loop or systemd, which starts the command again at once, would do so over and over until the machine is gone.
        """
        if self._turn.stopping or self._turn.terms or all(n.kind in OF_A_PERSON for n in p.standing.values()):
            return False
        seen = p.notice.seen_at
        return seen <= command.since + FIRST_LOOK and all(q.session.since >= seen for q in p.parts.values())

    def _wait_out(self, p: Preemption, patience: float) -> None:
        self._command.current = None
        self._restart.wait(p.machine_deadline + patience, patience, notices=p.standing)
        self._turn.do(Rest())

    def _after_end(self, command: Command) -> None:
        """Decide what comes next after the command's end, if no notice is active."""
        left = self._command.left_alive() or self._command.orphaned(command)
        if (
            self._turn.force_at is not None
            and left
            and not self._shutdown.cleared(command, self._turn.force_at)
        ):
            return  # a person asked for the end at once, which includes the workers
        if (why := self._command.unattached) and not command.named_unattached:
            command.named_unattached = True
            self._turn.log(f"--attach has guarded nothing: {why}", logging.WARNING)
        returncode = command.returncode if command.returncode is not None else 0
        code = returncode if returncode >= 0 else 128 - returncode
        if code and command.exit_code is not None:
            code = command.exit_code
        by_hand = self._turn.stopping or code - 128 in BY_HAND
        if command.leave_by is not None and command.ended_at <= command.leave_by and code != 0:
            if self._turn.policy.outlive and not self._turn.stopping:
                self._relaunch("the notice was withdrawn")
            else:
                self._over(command, self._turn.policy.exit_code)
        elif code != 0 and not by_hand and (seconds := self._peers.seconds_to_rejoin(command)):
            self._try_again(code, seconds)
        elif code in (0, BEYOND_US) or by_hand:
            self._over(command, code)
        else:
            if command.decision is None:
                command.decision = self._decide(command.end or CommandEnded(command.pid, code))
            action = command.decision.action
            if action in (RecoveryAction.RESTART, RecoveryAction.BACK):
                self.count += 1
                self._relaunch_failed(
                    f"it crashed with {code}, {command.decision.why}", command.decision.kind
                )
            elif action is RecoveryAction.LEAVE:
                self._over(command, self._turn.policy.exit_code)
            else:
                self._over(command, code)

    def _decide(self, command: CommandEnded) -> RecoveryDecision:
        """Log what the failed command is put down to, and decide what follows."""
        cause, decision = self._recovery.conclude(command, self._stall_response.decision)
        self._log_failure(cause, decision, command.returncode)
        if decision.action is RecoveryAction.LEAVE:
            kind = "unknown" if cause is None else cause.kind
            # A rank that has lost another one is not on the machine that failed.
            machine = None if kind == "peer-lost" else ""
            error = None if cause is None else cause.error
            broken = error is not None and is_broken_hardware(kind, error.message)
            exclude(self._turn, decision.why, kind, machine, broken=broken)
        return decision

    def _log_failure(
        self, cause: FailureCause | None, decision: RecoveryDecision, returncode: int | None
    ) -> None:
        facts = {"class": "unknown", "text": "the command failed"} if cause is None else cause.facts()
        self._turn.do(ReportEvent("failure", {**facts, "returncode": returncode}))
        if cause is not None:
            self._turn.log(f"training failed: {cause.text}", logging.ERROR)
        if decision.action is RecoveryAction.STOP and decision.why:
            self._turn.log(decision.why, logging.ERROR)

    def _go_on_after_stall(self, p: Preemption) -> None:
        if any(part.session.world > len(group) for group in p.groups() for part in group):
            self._peers.rejoin()  # the job's other machines start again, too
        self.count += 1
        self._relaunch(f"training stood still, {self._stall_response.decision.why}", "stall")

    def _try_again(self, code: int, seconds: float) -> None:
        self._turn.log(
            f"the command ended with {code} before a training process had registered: the job's other machines may not be "
            f"there yet, so it is started again in {PAUSE:.0f} s, and for {span(seconds)} more",
            logging.WARNING,
        )
        self._pause(PAUSE, "the job's other machines may be there now")

    def _relaunch_failed(self, why: str, failure: str) -> None:
        """Start a command again that has failed, the later the more often it failed before it had completed a step."""
        if (seconds := self._recovery.pause()) == 0.0:
            self._relaunch(why, failure)
            return
        self._turn.log(f"starting the command again in {seconds:.0f} s: {why}", logging.WARNING)
        self._command.kill_all()
        self._pause(seconds, "no step was completed before the failure", failure)

    def _pause(self, seconds: float, reason: str, failure: str = "") -> None:
        """Have the next start wait. A notice that comes meanwhile is waited out, and SIGTERM ends the wait."""
        self._command.current = None
        patience = OUTLIVED if self._turn.policy.outlive else 0.0
        self._restart.wait(self._turn.now + seconds, patience, reason=reason, failure=failure)
        self._turn.do(Rest())

    def _over(self, command: Command, code: int) -> None:
        if code == 0 or self._turn.stopping or self._shutdown.swept(command):
            self._turn.exit(code)

    def _relaunch(self, why: str, failure: str = "") -> None:
        self._turn.log(f"starting the command again: {why}", logging.WARNING)
        self._command.kill_all()  # any process that is left holds the run id
        self._command.current = None
        self._restart.over()
        self._turn.do(self._recovery.launch(self._peers.take_moves(), failure))
