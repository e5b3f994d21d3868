"""The demo's progress on stdout: live bars at a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from spotguard.providers.clock import Clock

if TYPE_CHECKING:
    from rich.progress import TaskID

#: The share of all steps after which a lane prints its next plain line.
_PLAIN_SHARE = 0.2


class Screen(Protocol):
    """The demo's whole output while it runs. A context manager, called from one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Show an event."""
        ...

    def lane(self, name: str, step: int, loss: float | None, doing: str) -> None:
        """Show a machine's progress. A new lane is added below the others."""
        ...


def open_screen(total: int, clock: Clock, *, plain: bool, out: TextIO | None = None) -> Screen:
    """Return live bars for a terminal, and plain lines elsewhere or with `plain`."""
    out = out or sys.stdout
    if plain or not out.isatty():
        return PlainScreen(total, clock, out)
    return LiveScreen(total, clock, out)


class PlainScreen:
    """A screen of plain lines: one for each event, and one for each machine from time to time."""

    def __init__(self, total: int, clock: Clock, out: TextIO) -> None:
        self._total = total
        self._clock = clock
        self._out = out
        self._began = clock.monotonic()
        self._told: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        print(f"{self._clock.monotonic() - self._began:6.1f} s  {text}", file=self._out, flush=True)

    def lane(self, name: str, step: int, loss: float | None, doing: str) -> None:
        stride = max(1, int(self._total * _PLAIN_SHARE))
        if loss is None or step // stride == self._told.get(name):
            return
        self._told[name] = step // stride
        self.say(f"{name}: step {step} of {self._total}, loss {loss:.3f}")


class LiveScreen:
    """A screen with a bar for each machine, below a growing list of events."""

    def __init__(self, total: int, clock: Clock, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._total = total
        self._clock = clock
        self._began = clock.monotonic()
        self._lanes: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]:>10}"),
            TextColumn("[dim]{task.fields[doing]}"),
            console=Console(file=out),
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(
            f"{self._clock.monotonic() - self._began:6.1f} s  {text}", highlight=False, markup=False
        )

    def lane(self, name: str, step: int, loss: float | None, doing: str) -> None:
        shown = "" if loss is None else f"loss {loss:.3f}"
        if name not in self._lanes:
            self._lanes[name] = self._progress.add_task(name, total=self._total, loss=shown, doing=doing)
        self._progress.update(self._lanes[name], completed=step, loss=shown, doing=doing)
