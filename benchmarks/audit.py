"""What looking for edits between boundaries costs: the share of a step that slices take, and a notice that meets an audit.

A turn is one AdamW step and nothing else, the shortest that a state of this size can have. Seconds of the audit are
counted inside it, so that the noise of a shared machine is in both.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

import spotguard
from spotguard.hooks.guard import Guard

from .environment import environment
from .rows import Row
from .scale import Scale

#: Bytes of parameters and moments.
SIZES = {"0.1 GB": 0.1e9, "1 GB": 1e9, "8 GB": 8e9}
#: Boundaries whose slices may take 2 %, as `hooks/state/changes/audit.py` has it.
EARLY = 200
#: What no step of the larger states is to be waited for.
SECONDS = 60.0


def measure(scale: Scale) -> Iterator[Row]:
    for name, nbytes in scale.of(SIZES, {"0.1 GB": 1e6}).items():
        turns = scale.of(150, 3)
        with _training(scale, name, int(nbytes)) as (guard, turn):
            yield from _shares(guard, turn, turns, name, scale)
            yield from _notices(guard, name, scale.of(15, 2))


def _shares(guard: Guard, turn: Callable[[], None], turns: int, name: str, scale: Scale) -> Iterator[Row]:
    audit, spent, read = guard._state.audit, [0.0], [0]

    def counted(what: Callable[..., object]) -> Callable[..., object]:
        def count(*args: object) -> object:
            started = time.perf_counter()
            try:
                return what(*args)
            finally:
                spent[0] += time.perf_counter() - started

        return count

    def followed() -> None:
        turn()
        read[0] += sum(region.stop - region.start for region, _ in audit._slice)

    audit.turn, audit.look = counted(audit.turn), counted(audit.look)  # type: ignore[method-assign, assignment]
    for what, figure in ((f"the first {EARLY}", 2.0), ("later", 0.1)):
        steps = _timed(followed, spent, turns, scale)
        yield _share(f"slices of {what} boundaries, {name}", steps, figure)
        yield Row(
            f"turns in which they come round, {name}", "", (audit._total * len(steps) / max(read[0], 1),)
        )
        audit._boundaries, audit._credit, read[0] = EARLY, 0.0, 0  # as it is a while after these are over
    started = time.perf_counter()
    audit.take(lambda: False)
    yield Row(
        f"checksums of all for a background checkpoint, {name}",
        "ms",
        ((time.perf_counter() - started) * 1e3,),
    )


def _timed(
    turn: Callable[[], None], spent: list[float], turns: int, scale: Scale
) -> list[tuple[float, float]]:
    """Seconds of each turn, and of the audit in it."""
    steps: list[tuple[float, float]] = []
    until = time.perf_counter() + scale.of(SECONDS, 1.0)
    while len(steps) < turns and time.perf_counter() < until:
        spent[0], started = 0.0, time.perf_counter()
        turn()
        steps.append((time.perf_counter() - started, spent[0]))
    return steps


def _share(what: str, steps: list[tuple[float, float]], figure: float) -> Row:
    """Of all time, for slices that are saved up come at some boundaries only; and of the median step beside it."""
    whole = 100 * sum(audit for _, audit in steps) / sum(step - audit for step, audit in steps)
    median = statistics.median(step - audit for step, audit in steps)
    return Row(f"{what} (a step takes {median * 1e3:.0f} ms)", "%", (whole,), figure=figure)


def _notices(guard: Guard, name: str, times: int) -> Iterator[Row]:
    """How long the training thread goes on taking checksums that a notice has made useless."""
    audit, waits = guard._state.audit, []
    for _ in range(times):
        told, called = threading.Event(), [0.0]

        def notice(told: threading.Event = told, called: list[float] = called) -> None:
            time.sleep(0.002)
            called[0] = time.perf_counter()
            told.set()

        thread = threading.Thread(target=notice)
        thread.start()
        audit.take(told.is_set)
        waits.append(max(0.0, time.perf_counter() - called[0]) * 1e3 if called[0] else 0.0)
        thread.join()
    yield Row(
        f"notice → the training thread is free of a checksum under way, {name}",
        "ms",
        tuple(waits),
        figure=100.0,
        worst=True,
    )


@contextmanager
def _training(scale: Scale, name: str, nbytes: int) -> Iterator[tuple[Guard, Callable[[], None]]]:
    numbers = nbytes // 12
    model = nn.ParameterList([torch.zeros(numbers // 8) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    with environment(SPOTGUARD_EVERY="off", SPOTGUARD_SOCKET=""):
        store = (scale.folder / "store").as_uri()
        guard = spotguard.register(store, run_id=f"audit-{name[0]}", model=model, optimizer=optimizer)

    def turn() -> None:
        optimizer.step()
        guard.step()

    try:
        guard.restore()
        for _ in range(5):
            turn()
        yield guard, turn
    finally:
        guard.close()
