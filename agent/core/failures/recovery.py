"""What follows a failure, by its class: another start, the end, or another machine (`--recover`, `--max-restarts`).

Pure, like all of `core`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ....hooks.ipc.failure_classes import CLASSES
from ..state import RecoveryAction, RecoveryRule

#: The classes that a rule may name: those of errors, a death by a signal, and training that stands still.
FAILURES = (*CLASSES, "killed", "stall")


@dataclass(frozen=True, slots=True)
class RecoveryDecision:
    """What follows one failure, with the words for the log."""

    action: RecoveryAction
    why: str


class Recovery:
    """Decides what follows each failure, and counts restarts.

    Args:
        rules: the rules of `--recover`, by class.
        max_restarts: restarts of the classes without a rule, all together.
    """

    def __init__(self, rules: Mapping[str, RecoveryRule], max_restarts: int) -> None:
        self._rules, self._max_restarts = rules, max_restarts
        self._made: Counter[str] = Counter()

    def acts_on(self, kind: str) -> bool:
        """Return whether a rule names this class."""
        return kind in self._rules

    def decide(self, kind: str, *, repeats: bool = False) -> RecoveryDecision:
        """Return what follows a failure of this class, and count a restart.

        Args:
            kind: the class; "" if it is not known.
            repeats: the start before failed by the same error at the same step.
        """
        rule = self._rules.get(kind)
        action = RecoveryAction.RESTART if rule is None else rule.action
        if repeats:
            same = "the start before failed with the same error at the same step: the command is not started again"
            return RecoveryDecision(RecoveryAction.STOP, same)
        if action is not RecoveryAction.RESTART:
            return RecoveryDecision(action, f"--recover {kind}={action}")
        of, most = ("", self._max_restarts) if rule is None else (kind, rule.budget)
        if self._made[of] >= most:
            spent = f"the {most} restarts of {of or '--max-restarts'} are used up" if most else ""
            return RecoveryDecision(RecoveryAction.STOP, spent)
        self._made[of] += 1
        number = f"restart {self._made[of]} of {most}"
        return RecoveryDecision(RecoveryAction.RESTART, f"{number} for {of}" if of else number)
