"""What can happen to a rank, each by its name. On a thread of its own, while the training thread waits for it or goes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from spotguard.hooks.commit.plan.partitioner import ALL_STAY
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.ipc import protocol
from spotguard.testing import preempt
from tests.fakes.several import whole

if TYPE_CHECKING:
    from tests.hooks.ranks.programs.life import Life

#: Seconds after which something that a scenario waits for will not come.
PATIENCE = 100.0
#: Seconds of a notice, unless a test says otherwise.
WINDOW = 30.0
#: What happens while training goes on.
BESIDE = ("withdrawn when saved",)


def until(there: Callable[[], bool]) -> None:
    """Wait for it. A stuck training thread that somebody frees at last, so that its process can play on."""
    nothing, looks = threading.Event(), int(PATIENCE / 0.01)
    assert any(there() or nothing.wait(0.01) for _ in range(looks)), "it did not come"


def happen(life: Life, event: dict[str, Any]) -> None:
    HAPPENINGS[event["what"]](life, event)


def _preempt(life: Life, event: dict[str, Any]) -> None:
    assert life.guard is not None
    preempt(life.guard, _seconds(event))


def _notice(life: Life, event: dict[str, Any]) -> None:
    """As its agent would say it, to this rank alone."""
    _hear(
        life,
        protocol.Preempt(event["id"], _seconds(event), 0.0, "reclaim", "a test", event.get("drill", False)),
    )


def _false_alarm(life: Life, event: dict[str, Any]) -> None:
    assert life.guard is not None
    saver = life.guard._saver
    _notice(life, event)
    until(lambda: saver.saving or event["at once"])
    _hear(life, protocol.Withdrawn(event["id"]))
    until(lambda: not saver.has_notice)


def _withdrawn_when_saved(life: Life, event: dict[str, Any]) -> None:
    guard = life.guard
    assert guard is not None
    until(lambda: guard._checkpointer.last is not None and not guard._saver.saving)
    _hear(life, protocol.Withdrawn(event["id"]))


def _noticed(life: Life, event: dict[str, Any]) -> None:
    guard = life.guard
    assert guard is not None
    until(lambda: guard._saver.has_notice)
    if event.get("shut"):
        until(lambda: guard._gate.place.shut is not Shut.OPEN or life.state_tensors())


def _agreed(life: Life, event: dict[str, Any]) -> None:
    """All ranks have offered, and this one is told how far it is to go."""
    guard = life.guard
    assert guard is not None
    until(lambda: guard._gate.place.target is not None)


def _passes(life: Life, event: dict[str, Any]) -> None:
    """The test sees it, and the training thread does not wait."""
    Path(event["sign"]).touch()


def _background(life: Life, event: dict[str, Any]) -> None:
    guard = life.guard
    assert guard is not None
    assert guard._coordinator is not None
    ranks = guard._coordinator
    until(lambda: ranks.background("a test"))  # one before it may not be tidied up behind


def _saved(life: Life, event: dict[str, Any]) -> None:
    guard = life.guard
    assert guard is not None
    place = guard._gate.place
    until(
        lambda: (
            # The ranks chose a boundary that this one has yet to come to.
            (place.target is not None and place.completed < place.target)
            or ((last := guard._checkpointer.last) is not None and last.step >= event["least"])
        )
    )


def _told_to_leave(life: Life, event: dict[str, Any]) -> None:
    """Behind the deadline, as an agent does it."""
    guard = life.guard
    assert guard is not None
    saver, clock = guard._saver, guard._clock
    until(
        lambda: (
            (preemption := saver._preemption) is not None
            and preemption.deadline < clock.monotonic()
            and not saver.saving
        )
    )
    _hear(life, protocol.Leave(event["id"], 75))


def _counts(life: Life, event: dict[str, Any]) -> None:
    before = _collectives()
    _saved(life, event)
    life.said["collectives"] = before, _collectives()


def _breaks_its_groups(life: Life, event: dict[str, Any]) -> None:
    """From here on every collective raises, whoever makes it."""
    dist.destroy_process_group()
    shards = [parameter for parameter in life.model.parameters() if isinstance(parameter, DTensor)]
    collectives: list[Callable[[], object]] = [dist.barrier, partial(dist.all_reduce, torch.ones(1))]
    collectives += [partial(whole, shard) for shard in shards]
    life.said["collectives"] = "all raise"
    for collective in collectives:
        try:
            collective()
        except (RuntimeError, ValueError):  # there is no such group
            continue
        life.said["collectives"] = f"{collective} can be made"


def _slow_link(life: Life, event: dict[str, Any]) -> None:
    """This rank's moments would take so many seconds, by all that is known of its link."""
    guard = life.guard
    assert guard is not None
    checkpointer = guard._checkpointer
    until(lambda: checkpointer.cost(ALL_STAY).moments > 0)  # its save is rehearsed
    link, now = checkpointer._writer.uploads.link, guard._clock.monotonic()
    moments = checkpointer.cost(ALL_STAY).moments
    link.begin(now - 10.0)
    link.sent(round(moments * 10.0 / _seconds(event)), now)
    link.end(now)


def _drift(life: Life, event: dict[str, Any]) -> None:
    with torch.no_grad():
        next(life.model.parameters()).add_(1.0)


def _outlives(life: Life, event: dict[str, Any]) -> None:
    until(lambda: not Path(f"/proc/{event['pid']}").exists())


def _waits(life: Life, event: dict[str, Any]) -> None:
    """Until the test takes the sign away."""
    sign = Path(event["sign"])
    sign.touch()
    until(lambda: not sign.exists())


def _reaches(life: Life, event: dict[str, Any]) -> None:
    """This place: the test sees it, and gives notice."""
    Path(event["sign"]).touch()
    _noticed(life, event)


def _hears_of(life: Life, event: dict[str, Any]) -> None:
    """So many notices; the test sees it."""
    guard = life.guard
    assert guard is not None
    assert guard._channel is not None
    channel = guard._channel
    until(lambda: len(channel.standing.notices) >= event["count"])
    Path(event["sign"]).touch()


def _kill(life: Life, event: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _nothing(life: Life, event: dict[str, Any]) -> None:
    """The training thread is stuck; see `Life.at`."""


HAPPENINGS: dict[str, Callable[[Life, dict[str, Any]], None]] = {
    "preempt": _preempt,
    "notice": _notice,
    "false alarm": _false_alarm,
    "withdrawn when saved": _withdrawn_when_saved,
    "noticed": _noticed,
    "background": _background,
    "saved": _saved,
    "told to leave": _told_to_leave,
    "counts": _counts,
    "breaks its groups": _breaks_its_groups,
    "drift": _drift,
    "slow link": _slow_link,
    "outlives": _outlives,
    "waits": _waits,
    "reaches": _reaches,
    "hears of": _hears_of,
    "kill": _kill,
    "stuck": _nothing,
    "sleeps": _nothing,
    "agreed": _agreed,
    "passes": _passes,
}


def _seconds(event: dict[str, Any]) -> float:
    return float(event.get("seconds", WINDOW))


def _hear(life: Life, word: protocol.Message) -> None:
    assert life.guard is not None
    life.guard._agent.hear(word)


def _collectives() -> int:
    """Made so far by this process in its groups, whoever asked for them."""
    groups = dist.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)  # type: ignore[attr-defined]
