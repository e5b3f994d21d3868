"""What a signal to `spotguard run` means: SIGTERM is a notice, a second one or SIGINT ends the command at once.

A training process that holds a Ctrl-C or a terminal's hang-up asks for a notice, too: it is saved first. `machine` calls this in the states in which a command runs or waits for its next start. A service has a rule of its own
(`shutdown.Service`).
"""

from __future__ import annotations

import logging
import signal
from dataclasses import replace

from ....hooks.ipc.failure_classes import LEAVES_FOR_STALL
from ....providers.notice import Notice, NoticeKind
from ...actions import SignalGroup
from ...events import PASSED_ON
from ..budget import SIGTERM_WINDOW
from ..command import CommandGroup
from ..delivery import Delivery
from ..preemption import EndState, Preemption
from ..state import Turn

#: Seconds after a second SIGTERM, or a SIGINT, at which the command is killed.
FORCE_GRACE = 5.0
#: SIGTERMs within this many seconds count as one. At a preemption and at a time limit, Slurm sends two in a row (slurmd's
#: `_rpc_timelimit`, then `_rpc_terminate_job`: seen). No person who wants a faster end is that fast.
ONE_TERM = 2.0
#: And SIGINTs within this many, if training holds the first: a sender may signal all processes.
ONE_PRESS = 0.1


#: A command that a person ended at the terminal did not crash.
BY_HAND = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: Signals that a training process may hold, by name.
_HELD = {each.name: each for each in (signal.SIGINT, signal.SIGHUP)}


class RunSignals:
    """The signals to `spotguard run`."""

    def __init__(self, turn: Turn, command: CommandGroup, delivery: Delivery) -> None:
        self._turn = turn
        self._command = command
        self._delivery = delivery
        #: Monotonic seconds until which a SIGTERM counts as the first one.
        self._first_term_until = 0.0
        #: The same, of a SIGINT that training holds.
        self._one_press_until = 0.0

    def received(self, signum: int, *, unhandled: bool = False) -> None:
        """Take a signal while the command runs."""
        if unhandled:
            self._take_for_notice(signum)
        elif signum in PASSED_ON:
            self._turn.do(SignalGroup(signum, passed_on=True, trained=self._command.trained))
        elif signum == signal.SIGTERM and self._turn.now < self._first_term_until:
            self._turn.log("SIGTERM was sent again within a moment: it is taken for one", logging.DEBUG)
        elif signum == signal.SIGINT and self._turn.now < self._one_press_until:
            self._turn.log("SIGINT came to run and to training: it is taken for one", logging.DEBUG)
        elif signum == signal.SIGINT or self._turn.terms:
            self._force(signum)
        elif signum == signal.SIGTERM:
            self._turn.terms += 1
            self._first_term_until = self._turn.now + ONE_TERM
            self._delivery.noticed(sigterm_notice(self._turn))

    def held(self, pid: int, name: str) -> None:
        """Take a training process's message that it holds this signal. A terminal sends it to the command's group alone."""
        if name in _HELD and pid in self._command.trained:
            self._take_for_notice(_HELD[name])

    def _take_for_notice(self, signum: int) -> None:
        p, name, command = self._delivery.active, signal.Signals(signum).name, self._command.current
        if p is not None and any(each.source == name for each in p.standing.values()):
            return  # each rank asks
        gone = p is None and command is not None and signum != signal.SIGINT and self._command.left_alive()
        if not (self._command.running or gone):
            return
        notice = sigterm_notice(self._turn, name)
        if signum == signal.SIGINT and command is not None:
            self._turn.interrupted, self._one_press_until = True, self._turn.now + ONE_PRESS
            # Where `run` got it too, it has said so, and the command would be killed for it.
            level = logging.DEBUG if self._turn.stopping else logging.INFO
            self._turn.stopping, self._turn.force_at, command.told = False, None, False
            self._turn.log(
                f"Ctrl-C: training is saved first, in {notice.window:.0f} s at most; a second Ctrl-C ends it at once",
                level,
            )
        else:
            self._turn.log(f"{name} would end training, which does not handle it: taken for a notice")
        if self._command.running:
            self._delivery.noticed(notice)
        else:  # its launcher has died of the signal
            self._delivery.start(Preemption(notice, self._turn.now, self._turn.policy.reserve))

    def between_starts(self, signum: int) -> None:
        """Take a signal while no command runs, and the next start is due."""
        if signum == signal.SIGTERM:
            self._turn.exit(self._turn.policy.exit_code)
        elif signum in BY_HAND:  # with 75, a shell's loop would go on
            self._turn.exit(128 + signum)

    def kill_if_forced(self) -> None:
        """Kill the command if it was asked to end at once, and its time is over."""
        if (
            self._command.running
            and self._turn.force_at is not None
            and self._turn.now >= self._turn.force_at
        ):
            self._turn.log("the command did not end: SIGKILL", logging.WARNING)
            self._kill()

    def _force(self, signum: int) -> None:
        """End the command at once: a person asked twice, or pressed Ctrl-C."""
        if self._turn.stopping:
            self._turn.log("asked again to end: SIGKILL to the command", logging.WARNING)
            self._kill()
            return
        self._turn.stopping = True
        self._turn.force_at = self._turn.now + FORCE_GRACE
        name = signal.Signals(signum).name
        p = self._delivery.active
        if signum == signal.SIGINT and p is None and self._command.trained:
            self._turn.log(
                f"{name}: training saves first if it does not handle it; else SIGKILL to the command in {FORCE_GRACE:.0f} s"
            )
        else:
            self._turn.log(
                f"{name}: ending the command at once, SIGKILL in {FORCE_GRACE:.0f} s", logging.WARNING
            )
        if p is not None and not p.rehearsal:
            p.end(EndState.TERMINATING, f"ended at once by {name}")
            p.term_at = p.again_at = None
            p.end_all()
        self._command.signal(signum)

    def _kill(self) -> None:
        """Kill a command that was asked to end, and whose time is over."""
        self._turn.force_at = None
        p = self._delivery.active
        if p is not None and not p.rehearsal:
            p.then("killed")
        self._command.kill_all()


def sigterm_notice(turn: Turn, name: str = "SIGTERM") -> Notice:
    """Return the notice for a SIGTERM to the agent, or for another signal of this name."""
    window = SIGTERM_WINDOW if turn.policy.window is None else turn.policy.window
    return Notice(
        id=f"{name.lower()}-{turn.now:.6f}",
        kind=NoticeKind.SIGNAL,
        source=name,
        deadline=turn.now + window,
        seen_at=turn.now,
        window=window,
    )


def leaving_notice(turn: Turn, why: str) -> Notice:
    """Return the notice for a failure after which the job is to go on elsewhere (`--recover CLASS=leave`)."""
    return replace(sigterm_notice(turn), id=f"{LEAVES_FOR_STALL}-{turn.now:.6f}", source=f"--recover ({why})")
