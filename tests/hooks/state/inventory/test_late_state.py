"""State whose shape changes after `register`: a restore makes it, or the boundary where it comes says what the script must do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.providers.errors import StateError
from tests.fakes.training import guarded
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


class Centered(nn.Module):
    """Has no center before its first batch."""

    center: Any
    scratch: Any

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(3, 2), dtype
        self.register_buffer("center", None)
        self.register_buffer("scratch", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        mean = y.detach().mean(0).to(self.dtype)
        self.center = mean if self.center is None else 0.5 * self.center + 0.5 * mean
        self.scratch = torch.ones(2) if self.scratch is None else self.scratch
        centered: torch.Tensor = y - self.center.float()
        return centered


class Growing(nn.Module):
    """Makes a layer in its first forward."""

    head: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 2), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.head is None:
            self.head = nn.Linear(2, 2)
        y: torch.Tensor = self.head(self.layer(x))
        return y


def trained(
    make: Callable[[], nn.Module], stop: int, store: WatchedStore, *, forward_first: bool = False
) -> Any:
    """Train to step 6, in a life that ends behind step `stop` and one that goes on; return the state."""
    for end in (stop, 6):
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.SGD(list(model.parameters()), lr=0.1)
        if forward_first:
            model(torch.zeros(4, 3))
        with guarded(store, {"model": model, "optimizer": optimizer}) as guard:
            for _ in range(guard.restore(), end):
                optimizer.zero_grad()
                model(torch.rand(4, 3)).square().mean().backward()
                optimizer.step()
                guard.step()
            guard.save()
    return model.state_dict()


@pytest.mark.parametrize(
    "make",
    [
        Centered,
        lambda: nn.Sequential(nn.Linear(3, 3), Centered()),
        lambda: nn.Sequential(Centered(), nn.Linear(2, 3), Centered(torch.float64)),
        lambda: torch.nn.ModuleDict({"a": Centered()})["a"],
    ],
)
def test_a_buffer_that_is_none_until_the_first_forward_comes_back(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    whole, cut = (trained(make, stop, WatchedStore()) for stop in (6, 3))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[key], cut[key]) and whole[key].dtype == cut[key].dtype for key in whole)
    assert not [each for each in caplog.records if "model" in each.getMessage()]


def test_a_layer_of_the_first_forward_is_said_at_once_and_its_remedy_is_exact(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(StateError, match="unknown here: head"):
        trained(Growing, 3, WatchedStore())
    (said,) = [each.getMessage() for each in caplog.records if "came into the module" in each.getMessage()]
    assert said.startswith("model.head.weight and 1 more came into the module after guard.restore()")
    caplog.clear()
    whole, cut = (trained(Growing, stop, WatchedStore(), forward_first=True) for stop in (6, 3))
    assert all(torch.equal(whole[key], cut[key]) for key in whole)
    assert not [each for each in caplog.records if "model" in each.getMessage()]


def test_a_layer_between_register_and_restore_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guarded(WatchedStore(), {"model": model, "optimizer": optimizer}) as guard:
        model.append(nn.Linear(2, 2))
        guard.restore()
        for _ in range(4):
            guard.step()
        guard.save()
    assert not [each for each in caplog.records if "model" in each.getMessage()]


class Queue(nn.Module):
    """Keeps its last outputs in a buffer that grows to six rows."""

    queue: torch.Tensor

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("queue", torch.zeros(rows, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        self.queue = torch.cat([self.queue, y.detach()])[-6:]
        return y - self.queue.mean(0)


def observed() -> nn.Module:
    """A model that is prepared for quantization: its observers get a value for each channel in the first forward."""
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with warnings.catch_warnings(action="ignore"):
        model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
        prepared: nn.Module = torch.ao.quantization.prepare_qat(model.train())
    return prepared


@pytest.mark.parametrize(
    "make",
    [Queue, observed, lambda: nn.Sequential(nn.Linear(3, 3), Queue()), lambda: nn.ModuleList([Queue()])[0]],
    ids=["queue", "observers", "below", "of a list"],
)
def test_a_buffer_that_training_gives_another_shape_comes_back(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    whole, cut = (trained(make, stop, WatchedStore()) for stop in (6, 3))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[key], cut[key]) for key in whole)
    assert not [each for each in caplog.records if "model" in each.getMessage()]


def test_a_buffer_of_another_shape_at_register_is_refused() -> None:
    store = WatchedStore()
    trained(Queue, 6, store)
    with pytest.raises(StateError, match=r"model.queue is \(2, 2\) torch.float32 here and \(6, 2\)"):
        trained(lambda: Queue(rows=2), 6, store)


def _tie(model: Any) -> None:
    model[1].weight = model[0].weight


def _untie(model: Any) -> None:
    model[2].weight = nn.Parameter(model[3].weight.detach().clone())


def _halve(model: Any) -> None:
    model[1].double()


def _shrink(model: Any) -> None:
    model[1].bias = nn.Parameter(model[1].bias[:1].detach().clone())


def _cut(model: Any) -> None:
    del model[1].bias


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_tie, "model[1].weight is one tensor with model[0].weight since this step"),
        (_untie, "model[3].weight is no longer one tensor with model[2].weight since this step"),
        (
            _halve,
            "model[1].weight is float64 of shape (3, 3), not float32 of shape (3, 3), and 1 more since this step",
        ),
        (_shrink, "model[1].bias is float32 of shape (1), not float32 of shape (3), since this step"),
        (_cut, "model[1].bias is in the module no more since this step"),
    ],
)
def test_a_change_that_a_restore_does_not_make_is_said_at_its_step(
    change: Callable[[Any], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    model: Any = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    model[3].weight = model[2].weight
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with guarded(WatchedStore(), {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        guard.step()
        assert not [each for each in caplog.records if "model" in each.getMessage()]
        change(model)
        guard.save()
        guard.step()
        guard.step()
        guard.save()
    (line,) = [each.getMessage() for each in caplog.records if "model" in each.getMessage()]
    assert line.startswith(said)


class Averaging(torch.optim.Optimizer):
    """A wrapper that averages gradients from its first step on, if `after` steps have passed."""

    def __init__(self, optimizer: torch.optim.Optimizer, after: int) -> None:
        self.optimizer, self.after = optimizer, after
        self._optimizer_step_pre_hooks: Any = {}
        self._optimizer_step_post_hooks: Any = {}
        self.average: list[torch.Tensor] = []

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.after -= 1
        if not self.average and self.after < 0:
            self.average = [torch.ones_like(p) for group in self.param_groups for p in group["params"]]
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


class Complete(Averaging):
    """The same with the remedy: its state dict includes its tensors."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({key: state[key] for key in ("state", "param_groups")})
        self.average = state["average"]


@pytest.mark.parametrize(
    ("kind", "after", "said"), [(Averaging, 0, 1), (Averaging, 3, 1), (Averaging, 99, 0), (Complete, 0, 0)]
)
def test_a_wrapper_that_gets_tensors_is_said_at_a_boundary_unless_its_state_dict_has_them(
    kind: type[Averaging], after: int, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()
    for life in range(1 if said else 2):
        model = nn.Linear(2, 2)
        optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), after)
        with guarded(store, {"model": model, "optimizer": optimizer}) as guard:
            if guard.restore() == 0:
                for _ in range(4):
                    model(torch.ones(2)).sum().backward()
                    optimizer.step()
                    guard.step()
                if not said:
                    guard.save()
        assert bool(optimizer.average) == (after < 4), life
    lines = [each.getMessage() for each in caplog.records if "no save is possible" in each.getMessage()]
    assert len(lines) == said
    assert all("optimizer (Averaging) holds optimizer.average[0]" in line for line in lines)


def test_a_new_form_is_found_where_saves_wait_for_boundaries(caplog: pytest.LogCaptureFixture) -> None:
    notes: dict[str, Any] = {"x": 1}
    with guarded(WatchedStore(), {"notes": notes}) as guard:
        guard.restore()
        for step in range(1, 9):
            if step == 6:
                notes["x"] = object()
            guard.step()
        said = [each.getMessage() for each in caplog.records if "no save can hold" in each.getMessage()]
    assert len(said) == 1
    assert "notes.x: object" in said[0]
