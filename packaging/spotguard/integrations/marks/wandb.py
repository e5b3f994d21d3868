"""Marks in Weights & Biases: `spotguard.integrations.wandb.mark(guard)`.

A call of `run.log` with a step would end the row that the script fills, and drop what the script logs next for that step. So marks
join the present row. Each kind of mark has a step of its own as its x axis.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spotguard.providers.errors import UsageError

from .history import NoteFile, newest_record
from .mark import TrackerMark
from .tracker import follow

__all__ = ["mark"]

_RECORD = "spotguard/preempted/record"


def mark(guard: Any, run: Any = None) -> None:
    """Mark this run's preemptions, resumes and checkpoints in Weights & Biases.

    Args:
        guard: the guard that `spotguard.register` returned, or an adapter's object that has it.
        run: the run. Default: the one that `wandb.init` began.

    Raises:
        UsageError: no run has begun.

    Example:
        >>> guard = spotguard.register(model=model, optimizer=optimizer)
        >>> wandb.init(project="gpt", id="gpt-small-7", resume="allow")
        >>> spotguard.integrations.wandb.mark(guard)
    """
    if run is None:
        import wandb

        run = wandb.run
    if run is None:
        raise UsageError("wandb.mark() found no run: call wandb.init() before it, or pass the run")
    follow(guard, _WandbRun(run))


class _WandbRun:
    every = 1.0

    def __init__(self, run: Any) -> None:
        self._run, self._defined = run, False
        # `run.dir` is WANDB_DIR/wandb/run-TIME-ID/files.
        self._folder = Path(run.dir).parents[1]
        self.place = f"{self._folder}, run {run.id}"
        self._note = NoteFile(self._folder / f"spotguard-{run.id}.json")

    def add(self, mark: TrackerMark) -> None:
        if not self._defined:
            for kind in ("checkpoint", "preempted", "resumed"):
                self._run.define_metric(f"spotguard/{kind}/*", step_metric=f"spotguard/{kind}/step")
            self._defined = True
        row: dict[str, Any] = {**mark.numbers, f"spotguard/{mark.kind}/step": mark.step}
        if mark.text:
            row[f"spotguard/{mark.kind}/text"] = mark.text
        if mark.record:
            row[_RECORD] = mark.record
        self._run.log(row, commit=False)

    def flush(self, *, leaving: bool) -> None:
        if leaving:  # the script logs nothing more into this row
            self._run.log({}, commit=True)
            self._run.mark_preempting()  # once it has ended, a sweep gives it to another agent

    def marked(self, run_id: str) -> int:
        """Search the files of earlier processes: offline, there is no other place. A resumed run also has its summary."""
        files = self._folder.glob(f"*run-*-{self._run.id}/run-{self._run.id}.wandb")
        summary = str(self._run.summary.get(_RECORD) or "").rpartition("/")[2]
        return max(newest_record(run_id, files), int(summary) if summary.isdigit() else 0)

    def read_note(self) -> str:
        return self._note.read()

    def write_note(self, note: str) -> None:
        self._note.write(note)
