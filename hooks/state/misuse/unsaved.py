"""Registered state that no save could hold as it is: in a place that no save reads, or in no memory of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..memory_access import unreadable
from ..parts.attribute_watch import AttributeWatch
from ..state_tensor import StateTensor
from .forgotten import Forgotten
from .script.loose_generators import LooseGenerators
from .script.rebound_names import ReboundNames

log = logging.getLogger("spotguard")


class UnsavedState:
    """The search for such state after `register`, which refuses it before. The training thread searches at boundaries.

    Args:
        lost: returns a message about tensors that an optimizer holds and no save has; "" if all are saved.
        watches: watches on values outside the saved state that may be state.
        save_at_boundaries: has saves wait for the boundary, for the given reason.
    """

    def __init__(
        self,
        lost: Callable[[], str],
        watches: Sequence[AttributeWatch | Forgotten | ReboundNames | LooseGenerators],
        save_at_boundaries: Callable[[str], None],
    ) -> None:
        self._lost, self._watches, self._save_at_boundaries = lost, watches, save_at_boundaries
        #: State that an optimizer now holds and that no save would contain. While it is not "", every save is refused.
        self.lacks = ""
        self._gone = ""

    def restored(self) -> None:
        """Begin anew to look for values that change: a restore is no change."""
        for each in self._watches:
            each.begin()

    @property
    def unsettled(self) -> bool:
        """Whether the next boundary tells whether something is worth a warning."""
        return any(each.unsettled for each in self._watches)

    def look_for_gaps(self, state_tensors: Sequence[StateTensor]) -> None:
        """Find tensors that no save can hold, although `register` accepted them.

        Log them now; each save refuses them by name.
        """
        gaps = ((state_tensor.name, unreadable(state_tensor.tensor)) for state_tensor in state_tensors)
        gone = next((f"{name} is {why}" for name, why in gaps if why), "")
        if gone and gone != self._gone:
            self._save_at_boundaries(gone)
            log.error("%s: spotguard cannot save while it is; use a plain tensor", gone)
        self._gone = gone

    def look_elsewhere(self, refresh: Callable[[], None]) -> None:
        """Find state that optimizers hold since `register` in places that no save reads.

        Args:
            refresh: follows tensors that were replaced.
        """
        if lost := self._lost():
            refresh()  # the state may belong to a parameter that replaced another
            lost = self._lost()
        if lost != self.lacks:
            self.lacks = lost
            if lost:
                log.error("no save is possible: %s", lost)
        self.look_for_changes()

    def look_for_changes(self) -> None:
        """Name values outside the saved state that keep changing."""
        for each in self._watches:
            each.look()
