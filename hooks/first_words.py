"""What a person is told when training begins: of which run, from which step, in which store; by the first rank, for all.

`spotguard run` says where training stands by itself, at the same terminal. That a run has nothing left to do it cannot know.
"""

from __future__ import annotations

import os

from .last_resort import tell


class FirstWords:
    """
    Args:
        first: whether this rank speaks for its job.
        url: of the store.
    """

    def __init__(self, first: bool, url: str) -> None:
        self._first = first
        self._url = url

    def restored(self, run_id: str, step: int, *, guarded: bool) -> None:
        """
        Args:
            guarded: an agent knows of this process.
        """
        if not self._first:
            return
        text = f"resumed from step {step} of run {run_id}" if step else f"run {run_id} begins at step 0"
        # A service speaks to the machine's journal, and nobody at this terminal reads that.
        by_run = guarded and bool(os.environ.get("SPOTGUARD_PARENT"))
        tell(f"{text} in {self._url}", aloud=not by_run)

    def finished(self, run_id: str, done: int, total: int) -> None:
        """The loop has no turn."""
        if self._first:
            tell(
                f"nothing is left to do: run {run_id} has done {done} steps, and its loop ends after {total}. To train anew give "
                "another run id (run_id of register, --run-id, or SPOTGUARD_RUN_ID)"
            )
