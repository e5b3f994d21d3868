"""Work behind `guard.step()` in a round of the loop: no resumed run repeats it, so its changes of registered values are named."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spotguard.hooks.guard import Guard
from spotguard.hooks.state.misuse.script.behind_boundary import CHANGES, DRAWS, changed_behind
from spotguard.hooks.state.parts.loaders import ResumableLoader
from tests.fakes.store import FakeStore
from tests.fakes.training import guarded

pytestmark = pytest.mark.torch

DATA = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))


class Script:
    """The values that the loops below train."""

    def __init__(self, module: nn.Module | None = None) -> None:
        self.model = module or nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.optimizer.step()
        self.notes: dict[str, Any] = {"losses": [], "best": 1.0}
        self.found: list[Any] = []

    def step(self) -> None:
        values = {"model": self.model, "optimizer": self.optimizer}
        values |= {"scheduler": self.scheduler, "notes": self.notes}
        self.found.append(changed_behind(sys._getframe(1), values))


def options(script: Script) -> None:
    for number in range(1):
        script.step()
        if number % 2 == 0:
            script.optimizer.param_groups[0]["lr"] *= 0.5


def options_of_groups(script: Script) -> None:
    optimizer = script.optimizer
    for _ in range(1):
        script.step()
        for group in optimizer.param_groups:
            group["lr"] = 0.01


def scheduler(script: Script) -> None:
    while not script.found:
        script.step()
        script.scheduler.step()


def notes(script: Script) -> None:
    kept = script.notes
    for _ in range(1):
        with torch.no_grad():
            script.step()
        kept["losses"].append(1.0)


def best(script: Script) -> None:
    for _ in range(1):
        if script.model is not None:
            script.step()
        loss = 0.5
        if loss < script.notes["best"]:
            script.notes["best"] = loss


def in_a_function(script: Script) -> None:
    def turn() -> None:
        script.step()

    for _ in range(1):
        turn()
        script.scheduler.step()


def at_the_end(script: Script) -> None:
    for _ in range(1):
        script.scheduler.step()
        script.notes["best"] = 0.5
        script.step()


def shown(script: Script) -> None:
    for number in range(1):
        script.step()
        print(number, script.notes["best"], script.scheduler.get_last_lr(), script.optimizer.state_dict())


def of_the_epoch(script: Script) -> None:
    for _ in range(1):
        for _ in range(1):
            script.step()
        script.scheduler.step()


def others(script: Script) -> None:
    notes = {"losses": list[float]()}
    for _ in range(1):
        script.step()
        notes["losses"].append(0.5)
        script.found[-1:] = script.found[-1:]


def by_generated_code(script: Script) -> None:
    exec("for _ in range(1):\n    script.step()\n    script.scheduler.step()", {"script": script})


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (options, "optimizer"),
        (options_of_groups, "optimizer"),
        (scheduler, "scheduler"),
        (notes, "notes"),
        (best, "notes"),
        (in_a_function, "scheduler"),
    ],
)
def test_a_change_behind_the_boundary_is_named_with_both_places(
    loop: Callable[[Script], None], name: str
) -> None:
    script = Script()
    loop(script)
    message, found, change, boundary = script.found[0]
    assert (message, found) == (CHANGES, name)
    assert change.split(":")[0] == boundary.split(":")[0] == "test_behind_boundary.py"
    assert int(change.split(":")[1]) > 0


@pytest.mark.parametrize("loop", [at_the_end, shown, of_the_epoch, others, by_generated_code])
def test_nothing_is_said_of_a_loop_that_changes_nothing_there(loop: Callable[[Script], None]) -> None:
    script = Script()
    loop(script)
    assert script.found == [None]


LOADER, SEEDED = DataLoader(DATA), DataLoader(DATA, generator=torch.Generator())


def validate() -> None:
    for _ in LOADER:
        pass


@pytest.mark.parametrize(
    ("module", "named"), [(nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 1)), True), (nn.Linear(2, 1), False)]
)
def test_a_pass_that_seeds_itself_is_named_where_training_draws(module: nn.Module, *, named: bool) -> None:
    """`iter()` of a DataLoader draws a seed."""
    script = Script(module)
    for _ in range(1):
        script.step()
        for _ in LOADER:
            pass
    for _ in range(1):
        script.step()
        sum(1 for _ in LOADER)
    for _ in range(1):
        script.step()
        validate()
    assert [found and (found[0], found[1]) for found in script.found] == [
        (DRAWS, "LOADER") if named else None
    ] * 3
    for _ in range(1):
        script.step()
        list(SEEDED)
        len(LOADER)
    assert script.found[-1] is None


def marked(script: Script, guard: Guard) -> None:
    for number in range(guard.restore(), 3):
        script.optimizer.step()
        guard.step()
        script.notes["best"] = number


def saved(script: Script, guard: Guard) -> None:
    for number in range(guard.restore(), 3):
        script.optimizer.step()
        guard.step()
        script.notes["best"] = number
        guard.save()


def counted(script: Script, guard: Guard) -> None:
    for number in guard.steps(3):
        script.optimizer.step()
        script.notes["best"] = number


def test_a_guard_warns_once_of_what_neither_its_loop_nor_a_save_covers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for train in (marked, saved, counted):
        script = Script()
        values = {"model": script.model, "optimizer": script.optimizer, "scheduler": script.scheduler}
        with guarded(FakeStore(), values | {"notes": script.notes}) as guard:
            train(script, guard)
    (said,) = [each for each in caplog.messages if "[SG426]" in each]
    assert said.startswith(
        "notes changes behind guard.step() in the same round of the loop (test_behind_boundary.py:"
    )


def test_no_batch_of_the_script_is_kept_alive() -> None:
    """A frame keeps what `f_locals` has returned."""

    def train(script: Script) -> None:
        for _ in range(1):
            batch = torch.zeros(4)
            seen.append(weakref.ref(batch))
            script.step()
            script.notes["best"] = 0.5
            del batch
            assert seen[0]() is None

    seen: list[weakref.ref[torch.Tensor]] = []
    script = Script()
    train(script)
    assert script.found[0] is not None


class Proxy:
    """As some packages have it: an object that answers for another, which is not there."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no object is bound: {name}")


def test_foreign_code_that_raises_is_no_error() -> None:
    script, proxy = Script(nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 1))), Proxy()
    for _ in range(1):
        script.step()
        print(list(map(id, [proxy])), id(proxy))
        next(iter([proxy]), proxy)
    assert script.found == [None]


def test_a_registered_loader_that_shuffles_makes_training_draw() -> None:
    script = Script()
    loader = ResumableLoader(DataLoader(DATA, shuffle=True))
    for _ in range(1):
        found = changed_behind(sys._getframe(), {"model": script.model, "loader": loader})
        list(LOADER)
    assert found is not None
    assert found[:2] == (DRAWS, "LOADER")
