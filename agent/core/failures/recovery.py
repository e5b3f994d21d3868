"""What follows a failure, by its class: another start, the end, or another machine (`--recover`, `--max-restarts`).

Pure, like all of `core`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...actions import Launch
from ...events import CommandEnded
from ..state import RecoveryAction, RecoveryRule
from .errors import FailureCause, FailureLog

#: The longest pause before a start, in seconds: a file system or a network that is gone comes back within minutes.
LONGEST_PAUSE = 60.0
_NOT_FINITE = (
    "the same data would make the values wrong again, so the command is not started again: --recover nan=back starts it before "
    "that data, for a script that leaves out guard.skip_steps, and nan=restart tries once more"
)


@dataclass(frozen=True, slots=True)
class RecoveryDecision:
    """What follows one failure, with the words for the log."""

    action: RecoveryAction
    why: str
    #: The class of the failure; "" if it is not known.
    kind: str = ""


class Recovery:
    """Decides what follows each failure, and counts the failures of each class.

    Args:
        rules: the rules of `--recover`, by class.
        max_restarts: restarts of the classes without a rule, all together, in this `spotguard run`.
        failures: the failures so far. Its counts are those of all attempts of the run.
    """

    def __init__(self, rules: Mapping[str, RecoveryRule], max_restarts: int, failures: FailureLog) -> None:
        self._rules, self._max_restarts = rules, max_restarts
        self._failures = failures
        self._restarts = 0

    def acts_on(self, kind: str) -> bool:
        """Return whether a rule names this class."""
        return kind in self._rules

    @property
    def taken(self) -> dict[str, tuple[str, int]]:
        """By class with a rule: its action, and how often it was taken for this run so far."""
        counts = self._failures.counts
        return {kind: (str(rule.action), counts.get(kind, 0)) for kind, rule in self._rules.items()}

    def launch(self, moves: tuple[tuple[frozenset[str], str], ...] = (), failure: str = "") -> Launch:
        """Return the next start of the command, with what it is to know of failures.

        Args:
            moves: the machines that have gone since the last start.
            failure: the class of the failure behind which it starts; "" for another reason.
        """
        return Launch(moves, failure, self.taken, self._failures.skip)

    def pause(self) -> float:
        """Return the seconds before the start that follows a failure: none, 1, 2, 4 … while starts fail without a completed step."""
        fruitless = self._failures.count_fruitless()
        return 0.0 if fruitless < 2 else min(LONGEST_PAUSE, 2.0 ** (fruitless - 2))

    def conclude(
        self, command: CommandEnded, of_stall: RecoveryDecision
    ) -> tuple[FailureCause | None, RecoveryDecision]:
        """Return what a failed command is put down to (None if nothing tells), and what follows.

        Args:
            command: the end of the command.
            of_stall: the decision about the newest stall. A launcher may end because a rank of it was killed for that stall.
        """
        cause = self._failures.conclude(command)
        if cause is not None and cause.kind == "stall":
            return cause, of_stall  # it was counted then
        decision = self.decide(
            "" if cause is None else cause.kind, repeats=cause is not None and cause.repeats
        )
        if cause is not None and decision.action is RecoveryAction.BACK:
            self._failures.go_back(cause)
        return cause, decision

    def repeated(self) -> tuple[FailureCause, RecoveryDecision] | None:
        """Return what ends a launcher that would only start its ranks into the same error again; None if nothing does."""
        cause = self._failures.repeated()
        if cause is None:
            return None
        rule = self._rules.get(cause.kind)
        if rule is not None and rule.action is RecoveryAction.BACK:
            return None  # the launcher's own starts have skipped no data
        return cause, self.decide(cause.kind, repeats=True)

    def decide(self, kind: str, *, repeats: bool = False) -> RecoveryDecision:
        """Return what follows a failure of this class, and count it.

        Args:
            kind: the class; "" if it is not known.
            repeats: the start before failed by the same error at the same step.
        """
        rule, counts = self._rules.get(kind), self._failures.counts
        before = counts.get(kind, 0)
        counts[kind] = before + 1
        if repeats:
            same = "the start before failed with the same error at the same step: the command is not started again"
            return RecoveryDecision(RecoveryAction.STOP, same, kind)
        if rule is None and kind == "nan":
            return RecoveryDecision(RecoveryAction.STOP, _NOT_FINITE, kind)
        if rule is None:
            return self._decide_without_rule(kind)
        if rule.action is RecoveryAction.STOP:
            return RecoveryDecision(rule.action, f"the run ends, as --recover {kind}=stop asks", kind)
        if before >= rule.budget:
            times = f"the {rule.budget} times of --recover {kind}={rule.action}:{rule.budget} are used up"
            return RecoveryDecision(RecoveryAction.STOP, times, kind)
        number = f"{rule.action} {before + 1} of {rule.budget} for {kind}"
        return RecoveryDecision(rule.action, number, kind)

    def _decide_without_rule(self, kind: str) -> RecoveryDecision:
        most = self._max_restarts
        if self._restarts >= most:
            spent = f"the {most} restarts of --max-restarts are used up" if most else ""
            return RecoveryDecision(RecoveryAction.STOP, spent, kind)
        self._restarts += 1
        return RecoveryDecision(RecoveryAction.RESTART, f"restart {self._restarts} of {most}", kind)
