"""What a module keeps and its `state_dict()` leaves out is named if the module's forward reads it from turn to turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.fakes.training import guarded, seed

pytestmark = pytest.mark.torch


class Kept(nn.Module):
    """Keeps what its `state_dict()` leaves out: a table, a tensor that grows in the first forward, and state of four kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.scratch: torch.Tensor
        self.register_buffer("scratch", torch.zeros(4), persistent=False)
        self.table = torch.arange(4.0)
        self.grown: torch.Tensor | None = None
        self.last: torch.Tensor | None = None
        self.mean = torch.zeros(4)
        self.calls, self.rate, self.bad = 0, 1.0, float("nan")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.grown is None:
            self.grown = torch.ones(4)
        self.mean.lerp_(x.detach(), 0.1)
        self.calls, self.rate = self.calls + 1, self.rate * 0.9
        self.scratch.lerp_(x.detach(), 0.1)
        self.last = self.weight * x * self.rate + self.mean + self.scratch + self.grown
        return self.last / self.calls


class KeptAndSaved(Kept):
    def get_extra_state(self) -> dict[str, Any]:
        return {"mean": self.mean, "calls": self.calls, "rate": self.rate}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def test_a_module_that_changes_what_its_state_leaves_out_is_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its author may have forgotten a buffer; a table is none, nor what is saved otherwise, nor a mode that the script sets."""
    seed()
    model = nn.Sequential(Kept(), Kept(), KeptAndSaved())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Saves:
        saved_modules = (model[1],)

        def state_dict(self) -> dict[str, Any]:
            return {"mean": model[1].mean}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            model[1].mean = state["mean"]

    with guarded(folder, {"model": model, "optimizer": optimizer, "means": Saves()}) as guard:
        guard.restore()
        for turn in range(17):
            model(torch.rand(4)).sum().backward()
            optimizer.step()
            model.train((turn + 1).bit_length() % 2 == 0)  # another one at each search
            guard.step()
        guard.save()
    told = [each for each in caplog.messages if "no checkpoint has it" in each]
    assert [each.partition(" changes ")[0] for each in told] == ["model.0.mean (and 3 more)"]


def test_a_restore_is_no_change_of_a_number(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is what a script sets once, before or behind it."""
    seed()
    model = Kept()
    with guarded(folder, {"model": model}) as guard:
        for number in range(5):
            model.calls = number
            guard.restore()
            guard.step()
            guard.save()
    assert "no checkpoint has it" not in caplog.text


class Scaled(nn.Module):
    """Scales what passes by `factor`, from what it keeps in `kept`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.drop = nn.Dropout(0.0)
        self.kept: Any = self.first()

    def first(self) -> Any:
        return [0]

    def factor(self) -> float:
        self.kept[0] += 1
        return float(0.9 ** self.kept[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.weight * self.drop(x) * self.factor()
        return scaled


class InDict(Scaled):
    def first(self) -> Any:
        return {0: 0}


class InArray(Scaled):
    def first(self) -> Any:
        return np.zeros(5)


class InTensors(Scaled):
    def first(self) -> Any:
        return [torch.zeros(()), torch.zeros(())]


class Counting(Scaled):
    """Counts batches, which nothing reads."""

    def factor(self) -> float:
        self.kept[0] += 1
        self.num_batches_tracked = getattr(self, "num_batches_tracked", 0) + 1
        return 1.0


class CountingInFront(nn.BatchNorm1d):
    """Counts batches, and reads nothing itself; the batches are what it keeps."""

    def __init__(self) -> None:
        super().__init__(4)
        self.drop, self.kept = nn.Dropout(0.0), {"batches": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept["batches"] += 1
        return super().forward(x.expand(2, 4) * torch.tensor([[1.0], [2.0]]))


class CutWhenLong(Scaled):
    """Has the last values, for others."""

    def factor(self) -> float:
        self.kept.append(len(self.weight))
        if len(self.kept) > 3:
            self.kept.pop(0)
        return 1.0


class ByNumber(Scaled):
    """Has its factor from the script."""

    temperature = 1.0

    def factor(self) -> float:
        return self.temperature


class Growing(Scaled):
    """Has a table that is longer in each turn."""

    def factor(self) -> float:
        self.kept = torch.arange(1.0 + len(self.kept))
        return float(self.kept.max())


class Showing(Scaled):
    """Keeps the last value, for others."""

    def factor(self) -> float:
        self.kept = torch.rand(2)
        return float(self.kept.max())


class Masked(Scaled):
    """Draws a mask in each turn, and reads it behind that."""

    shares = {"kept": 0.5}  # noqa: RUF012 - as in many classes

    def first(self) -> Any:
        return torch.ones(4)

    def drawn(self) -> torch.Tensor:
        return (torch.rand(4) < self.shares["kept"]).float()

    def draw(self) -> None:
        self.kept = self.drawn()

    def factor(self) -> Any:
        self.draw()
        return self.kept


class MaskedByBranches(Masked):
    def draw(self) -> None:
        if self.training and len(self.weight):
            self.kept: Any = self.drawn()
        elif self.training:
            raise ValueError
        else:
            self.kept = torch.ones_like(self.kept)


class MaskedInLoop(Masked):
    def factor(self) -> Any:
        for _ in range(3):
            self.kept = self.drawn()
            if self.kept.any():
                break
        try:
            return self.kept + self.weight.detach()
        finally:
            self.kept = self.drawn()


class MaskedByProperty(Masked):
    @property
    def mask(self) -> Any:
        with torch.no_grad():
            self.kept.data.bernoulli_(0.5)
        return self.kept

    def factor(self) -> Any:
        return self.mask


class MaskedBySuper(Masked):
    def factor(self) -> Any:
        return super().factor() + self.kept


class Refilled(Masked):
    """Fills its memory anew, each time in another way."""

    def factor(self) -> Any:
        kept = self.kept
        torch.rand(kept.shape, out=kept)
        return self.kept + self.kept.normal_().abs_()


class RefilledByFunction(Masked):
    def factor(self) -> Any:
        nn.init.uniform_(self.kept)
        self.kept[:] = self.drawn()
        return self.kept


class RefilledArray(Masked):
    def first(self) -> Any:
        return {"one": np.zeros(4), "two": [0.0]}

    def factor(self) -> Any:
        self.kept["one"].fill(float(torch.rand(())))
        self.kept["two"].clear()
        self.kept["two"].append(float(torch.rand(())))
        return float(self.kept["one"].sum()) + self.kept["two"][0]


class RefilledItems(Masked):
    """Fills tensors in a list, all or those that a test chooses, and reads them in another loop."""

    def first(self) -> Any:
        return [torch.zeros(4), torch.zeros(4), torch.zeros(2)]

    def factor(self) -> Any:
        torch._foreach_zero_(self.kept)
        for each in self.kept:
            if each.numel() == 4:
                each.copy_(self.drawn())
        return sum(kept for kept in self.kept[:2])


class RefilledWithSome(RefilledItems):
    def factor(self) -> Any:
        for each, weight in zip(self.kept, (self.weight, self.weight, None), strict=True):
            if weight is None:
                continue
            each.copy_(self.drawn())
        return sum(kept for kept, weight in zip(self.kept[:2], self.parameters(), strict=False))


class MaskedUnlessItRaises(Masked):
    def fail(self) -> None:
        raise ValueError

    def factor(self) -> Any:
        self.draw()
        if len(self.kept) != 4:
            self.fail()
        return self.kept


class Masking(Masked):
    def factor(self) -> Any:
        return self.kept


class Given(Scaled):
    """Gives other modules a mask in each turn, before they read it."""

    def first(self) -> Any:
        self.below, self.several = Masking(), nn.ModuleList([Masking(), Masking()])

    def factor(self) -> Any:
        self.below.kept = torch.rand(4)
        for each in self.several:
            each.kept = torch.rand(4)
            each(self.weight.detach())
        return self.below(self.weight.detach())


class GivenLate(Given):
    def factor(self) -> Any:
        factor = self.below(self.weight.detach())
        self.below.kept = torch.rand(4)
        return factor


class GivenFromBefore(Given):
    def factor(self) -> Any:
        before = self.below.kept * 0.9
        self.below.kept = before + torch.rand(4)
        return self.below(self.weight.detach())


class GivenItemsFromBefore(Given):
    def factor(self) -> Any:
        for at in range(2):
            before = self.several[at].kept * 0.9  # type: ignore[operator]
            self.several[at].kept = before + torch.rand(4)
            self.several[at](self.weight.detach())
        return 1.0


class MaskedAtTimes(Masked):
    """Draws a mask in some turns, and reads it in all."""

    def draw(self) -> None:
        if self.weight.sum() > 0:
            self.kept = self.drawn()


class MaskedUnlessItReturns(Masked):
    def draw(self) -> None:
        if not self.training:
            return
        self.kept = self.drawn()


class MaskedPerhaps(Masked):
    def draw(self) -> None:
        _ = self.training and self.kept.copy_(self.drawn())


class MaskedBehindIt(Masked):
    def factor(self) -> Any:
        mask = self.kept
        self.kept = self.drawn()
        return mask


class MaskedByTheLast(Masked):
    last = torch.ones(4)

    def factor(self) -> Any:
        self.last, self.kept = self.kept, self.drawn()
        return self.last


class MaskedInPart(Masked):
    def draw(self) -> None:
        self.kept[:2].copy_(self.drawn()[:2].add_(self.kept[2:]))


class Averaging(Masked):
    def draw(self) -> None:
        self.kept.copy_(self.kept * 0.9 + self.drawn())


class AveragingInto(Masked):
    def draw(self) -> None:
        torch.mul(self.kept, 0.9, out=self.kept).add_(self.drawn())


class AveragingItems(RefilledItems):
    def factor(self) -> Any:
        for each in self.kept[:2]:
            each.mul_(0.9).add_(self.drawn())
        return self.kept[0]


class RefilledAtTimes(RefilledItems):
    def factor(self) -> Any:
        for each in self.kept:
            if self.training:
                continue
            each.copy_(self.drawn())
        self.kept[0].add_(self.drawn())
        return self.kept[0]


class RefilledHereAndThere(RefilledItems):
    def factor(self) -> Any:
        for at in torch.randperm(3)[:1].tolist():
            self.kept[at] = self.drawn()
        return sum(self.kept[at] for at in range(2))


class RefilledInOnePlace(RefilledItems):
    def factor(self) -> Any:
        chosen = int(torch.randint(2, ()))
        for at, _ in enumerate(self.kept):
            if at == chosen:
                self.kept[at] = self.drawn()
        return sum(each for each in self.kept if each.numel() == 4)


class RefilledUpToOne(RefilledItems):
    def factor(self) -> Any:
        for at in range(2):
            self.kept[at] = self.drawn()
            if self.kept[at].any():
                break
        return sum(self.kept[at] for at in range(2))


class RefilledUpToAnother(RefilledItems):
    def factor(self) -> Any:
        most = int(torch.randint(1, 3, ()))
        for at in range(most):
            self.kept[at] = self.drawn()
        most = 2
        return sum(self.kept[at] for at in range(most))


class MaskedByHandedOn(MaskedBehindIt):
    def factor(self) -> Any:
        self.callbacks = [self.draw]
        return super().factor()


class MaskedByPrevious(MaskedBehindIt):
    def factor(self) -> Any:
        mask = self.kept
        self.kept = self.drawn()
        return len([mask for mask in range(3)]) * mask  # noqa: C416


class MaskedBehindMethod(Masked):
    def factor(self) -> Any:
        mask = self.kept
        self.draw()
        return mask


class MaskedUnlessSuppressed(Masked):
    def draw(self) -> None:
        with suppress(ValueError):
            if not self.training:
                raise ValueError
            self.kept = self.drawn()


SCRATCH = [
    Masked,
    MaskedByBranches,
    MaskedInLoop,
    MaskedByProperty,
    MaskedBySuper,
    Refilled,
    RefilledByFunction,
    RefilledArray,
    RefilledItems,
    RefilledWithSome,
    MaskedUnlessItRaises,
    Given,
]
STATE = [
    MaskedAtTimes,
    MaskedUnlessItReturns,
    MaskedPerhaps,
    MaskedBehindIt,
    MaskedByTheLast,
    MaskedInPart,
    Averaging,
    AveragingInto,
    AveragingItems,
    RefilledAtTimes,
    RefilledHereAndThere,
    RefilledInOnePlace,
    RefilledUpToOne,
    RefilledUpToAnother,
    MaskedByHandedOn,
    MaskedByPrevious,
    MaskedBehindMethod,
    MaskedUnlessSuppressed,
    GivenLate,
    GivenFromBefore,
    GivenItemsFromBefore,
]


class OfScript(Scaled):
    """Scales by a number that the script changes, or a method that the script calls."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = 1.0

    def factor(self) -> Any:
        return self.heat

    def anneal(self) -> None:
        self.heat *= 0.9

    @torch.no_grad()
    def moved(self) -> None:
        self.heat = max(0.1, 0.9 * self.heat)


class Rewound(OfScript):
    """Begins at the same number in each turn."""

    def rewind(self) -> None:
        self.heat = 1.0


class ByTurn(Scaled):
    """Scales by a number that the script sets from the turn."""

    rate = 1.0

    def factor(self) -> Any:
        return self.rate

    def scale_by(self, value: float) -> None:
        self.rate = value


class Warm(Scaled):
    """Counts the updates of its weight, which begin small."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0

    def factor(self) -> Any:
        return 1.0

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        self.weight.mul_(1 - 1 / (10 + self.updates))


class Counts(Scaled):
    """Counts what it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def factor(self) -> Any:
        return 1.0

    def count(self) -> None:
        self.seen += 1
        if self.seen % 100 == 0:
            print(self.seen)

    def text(self) -> str:
        return f"{self.seen} updates"


def halves(model: Any, turn: int) -> None:
    model.heat /= 2


def moves_on(model: Any, turn: int) -> None:
    model.heat = 0.9 * model.heat


class Metric(Scaled):
    """Has a `state_dict` of its own, as torchmetrics'."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs)


Script = Callable[[Any, int], Any]


def named(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    model: nn.Module,
    script: Script = lambda model, turn: None,
    **more: Any,
) -> list[str]:
    seed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guarded(folder, {"model": nn.Sequential(model), "optimizer": optimizer, **more}) as guard:
        guard.restore()
        for turn in range(9):
            vars(model)["temperature"] = 1.0 / (1 + turn)
            model.drop.p = 0.1 / (1 + turn)  # type: ignore[union-attr]
            model(torch.rand(4)).sum().backward()
            optimizer.step()
            script(model, turn)
            guard.step()
    return [each.partition(" ")[0] for each in caplog.messages if "[SG425]" in each]


@pytest.mark.parametrize("kind", [Scaled, InDict, InArray, InTensors])
def test_counter_in_a_container_of_a_module_is_named(
    kind: Callable[[], nn.Module], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert named(folder, caplog, kind()) == ["model.0.kept"]


@pytest.mark.parametrize("kind", [Counting, CountingInFront, CutWhenLong, ByNumber, Growing, Showing, Metric])
def test_value_that_no_forward_keeps_for_the_next_is_not_named(
    kind: Callable[[], nn.Module], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert named(folder, caplog, kind()) == []


@pytest.mark.parametrize("kind", SCRATCH)
def test_value_that_a_forward_sets_anew_before_it_reads_it_is_not_named(
    kind: Callable[[], nn.Module], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert named(folder, caplog, kind()) == []


@pytest.mark.parametrize("kind", STATE)
def test_value_that_a_forward_reads_as_an_earlier_turn_left_it_is_named(
    kind: Callable[[], nn.Module], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = named(folder, caplog, kind())
    assert name.endswith(".kept")


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        (OfScript, lambda model, turn: model.anneal()),
        (OfScript, lambda model, turn: model.moved()),
        (OfScript, halves),
        (OfScript, moves_on),
        (Warm, lambda model, turn: model.update()),
    ],
    ids=[
        "method",
        "method with a decorator",
        "script",
        "script by an assignment",
        "read where it is changed",
    ],
)
def test_number_that_is_changed_by_what_it_was_beside_the_forward_is_named(
    kind: Callable[[], nn.Module], script: Script, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = named(folder, caplog, kind(), script)
    assert name in ("model.0.heat", "model.0.updates")


@pytest.mark.parametrize(
    "script",
    [
        lambda model, turn: setattr(model, "rate", 0.9**turn),
        lambda model, turn: model.scale_by(0.9**turn),
    ],
    ids=["by the turn", "by the turn, in a method"],
)
def test_number_that_a_script_sets_from_the_turn_is_not_named(
    script: Script, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert named(folder, caplog, ByTurn(), script) == []


def test_count_that_is_only_shown_is_not_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert named(folder, caplog, Counts(), lambda model, turn: model.count()) == []


def test_number_that_each_turn_begins_anew_is_not_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def turn(model: Any, number: int) -> None:
        model.rewind()
        for _ in range(number):
            model.anneal()

    assert named(folder, caplog, Rewound(), turn) == []


@pytest.mark.parametrize("kind", [InDict, InTensors])
def test_container_of_a_module_that_is_registered_is_not_named(
    kind: Callable[[], Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = kind()
    kept = model.kept if kind is InDict else {"kept": model.kept}
    assert named(folder, caplog, model, kept=kept) == []


def test_change_is_seen_at_saves_too(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A number that changed behind the last look, and once before, is named in the first of two saves."""
    seed()
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guarded(folder, {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        for turn in range(7):
            model.kept = [model.kept[0] + (turn in (2, 5))]
            guard.step()
        assert "[SG425]" not in caplog.text
        guard.save()
        assert caplog.text.count("model.kept changes") == 1
