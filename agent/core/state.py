"""States of the agent's machine, and what its parts share while they handle one event: policy, time and actions.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import enum
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..actions import Action, Finish, Log

#: The times that a rule acts where it names no number.
BUDGET = 3


class MachineState(enum.Enum):
    """A state of the machine. `machine` has the table of what each event does in each state."""

    #: No notice is being answered.
    WATCHING = "watching"
    #: A drill after which training goes on.
    REHEARSING = "rehearsing"
    #: The agent has delivered the notice, and sessions save.
    SAVING = "saving"
    #: The agent has asked the running command to end.
    ENDING = "ending"
    #: The command has ended. Processes that it left behind may still save, or have to end.
    CLEARING = "clearing"
    #: Service only: the outcome is published, and the machine may still be there.
    SERVED = "served"
    #: Between the command's end and its next start, or the exit of `spotguard run`.
    WAITING = "waiting"
    #: `Finish` was the last action.
    FINISHED = "finished"


class RecoveryAction(enum.StrEnum):
    """What follows a failure."""

    #: The command starts again, from the newest checkpoint.
    RESTART = "restart"
    #: It starts again behind values that are not finite, from the newest checkpoint that is not suspect, with other data.
    BACK = "back"
    #: `spotguard run` ends with the command's exit code.
    STOP = "stop"
    #: `spotguard run` ends as after a preemption, so that the job goes on elsewhere.
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class RecoveryRule:
    """The action for one class of failures, and how often it is taken in all attempts of the run; `STOP` has no such number."""

    action: RecoveryAction
    budget: int = BUDGET


@dataclass(frozen=True, slots=True)
class Policy:
    """The options that decide how a notice ends."""

    #: True: guards one command. False: a service, which ends nothing.
    command: bool = True
    #: Seconds of warning to count on if the notice promises more (`--window`).
    window: float | None = None
    reserve: float | None = None
    #: The signal for a command of which no process has registered (`--signal`); None: no signal.
    signal: int | None = signal.SIGTERM
    max_restarts: int = 0
    #: What follows a failure, by its class (`--recover`).
    recover: Mapping[str, RecoveryRule] = field(default_factory=dict)
    #: Whoever starts the job again reads which machines to exclude (`--exclude-file`).
    excludes: bool = False
    #: The Kubernetes node of this pod, which is labelled if its hardware is broken (`NODE_NAME`); "" for none.
    node: str = ""
    #: The command is a launcher that starts its ranks again after a failure of one (`torchrun --max-restarts`).
    launcher_restarts: bool = False
    outlive: bool = False
    #: Adapters of frameworks attach themselves in the command (`--attach`).
    attach: bool = False
    exit_code: int = 75
    #: Seconds without progress that are a stall where nothing is usual yet (`--stall-first`); None: look for none.
    stall_first: float | None = 1800.0
    #: Seconds between two verifications of the newest checkpoint (`--verify-every`); None: none.
    verify_every: float | None = None
    #: Once everything is committed, let the cloud begin, if it waits for an acknowledgement.
    acknowledge: bool = False

    @property
    def after_stall(self) -> str:
        """The words for what follows for a run that stands still for good."""
        rule = self.recover.get("stall")
        return f"--recover stall={rule.action} follows at twice the limit" if rule else "nothing is ended"


class Turn:
    """One event on its way through the machine: the time, and the actions that the parts ask for, in order."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 0.0
        #: A second SIGTERM, or a SIGINT, has come: the command ends at once and nothing new begins.
        self.stopping = False
        #: Ctrl-C has been answered with a save: the exit code is that of an end by hand.
        self.interrupted = False
        #: SIGTERMs to `spotguard run` that count.
        self.terms = 0
        #: Monotonic seconds at which SIGKILL follows a forced end; None if no end is forced.
        self.force_at: float | None = None
        #: The last action of all, once a part has asked for it.
        self.finish: Finish | None = None
        self._actions: list[Action] = []

    def do(self, *actions: Action) -> None:
        """Ask the loop for these actions, after those already asked for."""
        self._actions += actions

    def log(self, text: str, level: int = logging.INFO) -> None:
        """Ask the loop for a log line, at its place among the actions."""
        self._actions.append(Log(level, text))

    def exit(self, code: int, until: float = 0.0) -> None:
        """Ask the loop to end the agent with this exit code.

        Args:
            until: monotonic seconds until which the command of `--on-notice` may still run.
        """
        self.finish = Finish(code, 0.0 if self.stopping else until)

    def take(self) -> list[Action]:
        """Return the actions of this turn, and begin the next one with none."""
        actions, self._actions = self._actions, []
        return actions
