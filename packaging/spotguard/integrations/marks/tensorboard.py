"""Marks in TensorBoard: `spotguard.integrations.tensorboard.mark(guard, writer)`.

They are a run of their own, in the directory `spotguard` below the writer's. A resumed script that passes `purge_step` hides its
own events from that step on, and would hide the marks of the same step with them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from spotguard.providers.errors import UsageError

from .history import NoteFile, newest_record
from .mark import TrackerMark
from .tracker import ALL, follow

__all__ = ["mark"]


def mark(guard: Any, writer: Any) -> None:
    """Mark this run's preemptions, resumes and checkpoints in TensorBoard.

    Args:
        guard: the guard that `spotguard.register` returned, or an adapter's object that has it.
        writer: the SummaryWriter, or the path of its directory. A writer is also flushed when a preemption is committed.

    Raises:
        UsageError: the writer has no directory.

    Example:
        >>> guard = spotguard.register(model=model, optimizer=optimizer)
        >>> writer = SummaryWriter("runs/gpt", purge_step=guard.restore())
        >>> spotguard.integrations.tensorboard.mark(guard, writer)
    """
    path = writer if isinstance(writer, (str, os.PathLike)) else getattr(writer, "log_dir", None)
    if path is None:
        raise UsageError(
            f"tensorboard.mark() got {writer!r}: pass a SummaryWriter, or the path of its directory"
        )
    follow(guard, _TensorBoardRun(os.fspath(path), getattr(writer, "flush", None)))


class _TensorBoardRun:
    every = 1.0

    def __init__(self, path: str, flush: Any) -> None:
        self.place = os.path.join(path, "spotguard")
        self._flush = flush
        self._writer: Any = None
        # A bucket has no file of the note, and its event files are not searched.
        self._folder = None if "://" in path else Path(self.place)
        self._note = None if self._folder is None else NoteFile(self._folder / "note.json")

    def add(self, mark: TrackerMark) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.place)
        for name, value in mark.numbers.items():
            self._writer.add_scalar(name, value, mark.step, mark.at)
        if mark.text:
            self._writer.add_text(f"spotguard/{mark.kind}", mark.text, mark.step, mark.at)

    def flush(self, *, leaving: bool) -> None:
        self._writer.flush()
        if leaving and self._flush is not None:
            self._flush()

    def marked(self, run_id: str) -> int:
        if self._folder is None:
            return ALL
        return newest_record(run_id, self._folder.glob("*tfevents*"))

    def read_note(self) -> str:
        return "" if self._note is None else self._note.read()

    def write_note(self, note: str) -> None:
        if self._note is not None:
            self._note.write(note)
