"""A tensor that a restore makes has its dimensions in the order of memory that it was saved with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.checkpoint.format.boxes import order_of, steps_in
from spotguard.hooks.checkpoint.format.values.decoder import decode, outline
from spotguard.hooks.checkpoint.format.values.foreign_readers import TensorOutline
from spotguard.providers.errors import CheckpointError
from tests.fakes.training import guarded
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


class Factors(torch.optim.SGD):
    """Keeps a tensor beside each parameter, as factors of a decomposition are kept."""

    make: Callable[[torch.Tensor], Any]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("factor", self.make(torch.arange(24.0) + p.sum()))


def resumed(
    make: Callable[[torch.Tensor], Any], caplog: pytest.LogCaptureFixture
) -> tuple[Any, Any, list[str]]:
    """Return a factor as it was saved and as it came back, and the warnings of the restore."""
    store, factors = WatchedStore(), []
    for _ in range(2):
        torch.manual_seed(0)
        model, notes = nn.Linear(3, 2), dict[str, Any]()
        kind = type("Factors", (Factors,), {"make": staticmethod(make)})
        optimizer = kind(model.parameters(), lr=0.1)
        caplog.clear()
        with guarded(store, {"model": model, "optimizer": optimizer, "notes": notes}) as guard:
            if guard.restore() == 0:
                optimizer.step()
                notes["factor"] = optimizer.state[model.weight]["factor"]
                guard.step()
                guard.save()
        factors.append((optimizer.state[model.weight]["factor"], notes["factor"]))
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    return factors[0], factors[1], [each for each in said if "unguarded" not in each]


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.view(4, 6).clone(),
        lambda t: t.view(4, 6).t(),
        lambda t: t.view(2, 3, 4).permute(2, 0, 1),
        lambda t: t.view(1, 24).t(),
        lambda t: t.view(2, 3, 2, 2).to(memory_format=torch.channels_last),
        lambda t: torch.linalg.qr(t[:9].view(3, 3) + torch.eye(3)).Q,
        lambda t: t.view(4, 6).t().bfloat16(),
        lambda t: t[0],
        lambda t: t[:0].view(2, 0),
    ],
)
def test_state_comes_back_in_its_saved_order(
    make: Callable[[torch.Tensor], Any], caplog: pytest.LogCaptureFixture
) -> None:
    saved, back, said = resumed(make, caplog)
    for before, after in zip(saved, back, strict=True):
        assert torch.equal(before, after)
        assert [s for s, n in zip(after.stride(), after.shape, strict=True) if n > 1] == [
            s for s, n in zip(before.stride(), before.shape, strict=True) if n > 1
        ]
    assert said == []


@pytest.mark.parametrize("make", [lambda t: t.view(4, 6)[:, ::2], lambda t: t[:4].view(4, 1).expand(4, 3)])
def test_state_with_gaps_or_overlaps_comes_back_dense_and_is_named(
    make: Callable[[torch.Tensor], Any], caplog: pytest.LogCaptureFixture
) -> None:
    (saved, _), (back, _), said = resumed(make, caplog)
    assert torch.equal(saved, back)
    assert back.is_contiguous()
    assert len(said) == 2  # the weight's and the bias's
    assert "optimizer/state/model/weight/factor had gaps in its memory when it was saved" in " ".join(said)


@pytest.mark.parametrize(("first", "second", "said"), [(0, 0, 0), (1, 1, 0), (0, 1, 2), (1, 0, 2)])
def test_a_live_tensor_in_another_order_is_said(
    caplog: pytest.LogCaptureFixture, first: bool, second: bool, said: int
) -> None:
    store = WatchedStore()
    for last in (first, second):
        form = torch.channels_last if last else torch.contiguous_format
        model = nn.Conv2d(2, 3, 3).to(memory_format=form)  # type: ignore[call-overload]
        table = torch.zeros(2, 3).t() if last else torch.zeros(3, 2)
        caplog.clear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with guarded(store, {"model": model, "optimizer": optimizer, "table": table}) as guard:
            if guard.restore() == 0:
                table += torch.arange(6.0).view(3, 2)
                guard.step()
                guard.save()
    lines = [each.getMessage() for each in caplog.records if "memory format" in each.getMessage()]
    assert [line.partition(" ")[0] for line in lines] == ["model.weight", "table"][:said]
    assert table.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], [-1, 0], ["0", 1], [True, 0], {}, "10", [1, 0, 2]])
@pytest.mark.parametrize("word", ["tensor", "parameter"])
def test_an_order_that_is_none_is_refused(order: Any, word: str) -> None:
    raw = {"$": word, "name": "t", "order": order, "requires_grad": False}
    with pytest.raises(CheckpointError):
        decode(raw, lambda name: torch.empty(2, 3, device="meta"))
    with pytest.raises(CheckpointError):
        outline(raw, lambda name: TensorOutline("float32", (2, 3)))


def test_an_order_is_that_of_the_steps_that_it_makes() -> None:
    for sizes in ((), (5,), (2, 3), (2, 1, 3), (1, 1), (4, 3, 2, 2), (0, 3)):
        for order in ([*range(len(sizes))], [*reversed(range(len(sizes)))]):
            steps = steps_in(order, sizes)
            again = order_of(sizes, steps)
            assert again is not None
            wide = [dim for dim, size in enumerate(sizes) if size > 1 and 0 not in sizes]
            assert [steps_in(again, sizes)[dim] for dim in wide] == [steps[dim] for dim in wide]
    assert order_of((2, 3), (6, 2)) is None
    assert order_of((2, 3), (0, 1)) is None
