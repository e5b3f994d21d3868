"""What follows a failure, by its class: another start, the end, or another machine (`--recover`, `--max-restarts`).

Pure, like all of `core`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..state import RecoveryAction, RecoveryRule

_NOT_FINITE = (
    "the same data would make the values wrong again, so the command is not started again: --recover nan=back starts it before "
    "that data, for a script that leaves out guard.skip_steps, and nan=restart tries once more"
)


@dataclass(frozen=True, slots=True)
class RecoveryDecision:
    """What follows one failure, with the words for the log."""

    action: RecoveryAction
    why: str


class Recovery:
    """Decides what follows each failure, and counts the failures of each class.

    Args:
        rules: the rules of `--recover`, by class.
        max_restarts: restarts of the classes without a rule, all together, in this `spotguard run`.
        counts: how often each class has ended the run so far, in all its attempts (`errors.FailureLog.counts`).
    """

    def __init__(
        self, rules: Mapping[str, RecoveryRule], max_restarts: int, counts: dict[str, int] | None = None
    ) -> None:
        self._rules, self._max_restarts = rules, max_restarts
        self._counts = {} if counts is None else counts
        self._restarts = 0

    def acts_on(self, kind: str) -> bool:
        """Return whether a rule names this class."""
        return kind in self._rules

    @property
    def taken(self) -> dict[str, tuple[str, int]]:
        """By class with a rule: its action, and how often it was taken for this run so far."""
        return {kind: (str(rule.action), self._counts.get(kind, 0)) for kind, rule in self._rules.items()}

    def decide(self, kind: str, *, repeats: bool = False) -> RecoveryDecision:
        """Return what follows a failure of this class, and count it.

        Args:
            kind: the class; "" if it is not known.
            repeats: the start before failed by the same error at the same step.
        """
        rule = self._rules.get(kind)
        before = self._counts.get(kind, 0)
        self._counts[kind] = before + 1
        if repeats:
            same = "the start before failed with the same error at the same step: the command is not started again"
            return RecoveryDecision(RecoveryAction.STOP, same)
        if rule is None and kind == "nan":
            return RecoveryDecision(RecoveryAction.STOP, _NOT_FINITE)
        if rule is None:
            return self._decide_without_rule()
        if rule.action is RecoveryAction.STOP:
            return RecoveryDecision(rule.action, f"--recover {kind}=stop")
        if before >= rule.budget:
            times = f"the {rule.budget} times of --recover {kind}={rule.action}:{rule.budget} are used up"
            return RecoveryDecision(RecoveryAction.STOP, times)
        number = f"{rule.action} {before + 1} of {rule.budget} for {kind}"
        return RecoveryDecision(rule.action, number)

    def _decide_without_rule(self) -> RecoveryDecision:
        most = self._max_restarts
        if self._restarts >= most:
            spent = f"the {most} restarts of --max-restarts are used up" if most else ""
            return RecoveryDecision(RecoveryAction.STOP, spent)
        self._restarts += 1
        return RecoveryDecision(RecoveryAction.RESTART, f"restart {self._restarts} of {most}")
