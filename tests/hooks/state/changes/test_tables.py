"""What is hung into a module after `register`: saved from the next boundary on, like what was there before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.ipc import protocol
from spotguard.hooks.state.changes.change_detector import ModuleTables
from spotguard.providers.errors import StateError
from tests.cases import cases
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import Heard, notice
from tests.fakes.training import bits, different, guarded, seed, wait_shut
from tests.fakes.watched_store import PATIENCE, WatchedStore

pytestmark = pytest.mark.torch


class Model(nn.Module):
    """Somewhere to hang something."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(4, 1)])
        self.cache: torch.Tensor | None
        self.register_buffer("cache", None)
        self.scale: nn.Parameter | None
        self.register_parameter("scale", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.heads[0](self.body(x))
        return out


class Counts(nn.Module):
    """Its state is no tensor."""

    calls = 0

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state


def frozen(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(*sizes), requires_grad=False)


def adapter(model: Model) -> None:
    model.add_module("adapter", nn.Linear(3, 3).requires_grad_(False))


def deep(model: Model) -> None:
    model.body[2].add_module("inner", nn.Sequential(nn.BatchNorm1d(2)))


def parameter(model: Model) -> None:
    model.body[0].register_parameter("gain", frozen(4))


def buffer(model: Model) -> None:
    model.body[0].register_buffer("seen", torch.rand(4))


def free_buffer(model: Model) -> None:
    model.cache = torch.rand(5)


def free_parameter(model: Model) -> None:
    model.scale = frozen(5)


def another_head(model: Model) -> None:
    model.heads.append(nn.Linear(4, 2).requires_grad_(False))


def other_layer(model: Model) -> None:
    model.body[2] = nn.PReLU().requires_grad_(False)


def no_layer(model: Model) -> None:
    del model.body[2]


def no_buffer(model: Model) -> None:
    del model.body[1].running_var


def other_norm(model: Model) -> None:
    """As many of everything as before."""
    model.body[1] = nn.BatchNorm1d(4, affine=False).requires_grad_(False)
    model.body[1].running_mean = torch.rand(4)


def extra(model: Model) -> None:
    model.counts = Counts()
    model.counts.calls = 3


CHANGES: list[Callable[[Model], None]] = [
    adapter,
    deep,
    parameter,
    buffer,
    free_buffer,
    free_parameter,
    another_head,
    other_layer,
    no_layer,
    no_buffer,
    other_norm,
    extra,
]


def values_of(model: Model) -> dict[str, Any]:
    """Its head alone is trained: nothing that is hung in or taken out is the optimizer's."""
    return {"model": model, "optimizer": torch.optim.AdamW(model.heads[0].parameters(), lr=0.1)}


def trained(values: dict[str, Any]) -> None:
    optimizer = values["optimizer"]
    optimizer.zero_grad()
    values["model"].heads[0](torch.rand(3, 4)).sum().backward()
    optimizer.step()


def check(store: WatchedStore, change: Callable[[Model], None], step: int, expected: dict[str, int]) -> None:
    """Fresh objects that look so restore that step, bit for bit."""
    seed(1)
    fresh = Model()
    change(fresh)
    with guarded(store, values_of(fresh)) as guard:
        assert guard.restore() == step
    assert different(bits({"model": fresh}, rng=False), expected) == []


@cases("later", [False, True])
@cases("change", CHANGES)
def test_added_and_removed_modules_are_followed(change: Callable[[Model], None], later: bool) -> None:
    """By a boundary within a second, or by the next save."""
    seed()
    store, model, clock = WatchedStore(), Model(), ManualClock()
    values = values_of(model)
    with guarded(store, values, clock=clock) as guard:
        guard.restore()
        for _ in range(6):
            trained(values)
            guard.step()
        change(model)
        if later:
            clock.advance(1)
            trained(values)
            guard.step()
            assert guard._state.inconsistency() == ""
        expected = bits({"model": model}, rng=False)
        saved = guard.save()
    check(store, change, saved.step, expected)


@pytest.mark.parametrize("change", CHANGES)
def test_a_notice_right_behind_it_waits_for_the_boundary(change: Callable[[Model], None]) -> None:
    """What stands in memory is neither the last step nor the next: the next is saved, with all that hangs there."""
    seed()
    store, model = WatchedStore(), Model()
    values = values_of(model)
    with guarded(store, values) as guard:
        heard = Heard(guard)
        guard.restore()
        trained(values)
        guard.step()
        change(model)
        guard._agent.hear(notice())
        wait_shut(guard)

        def leave() -> None:
            heard.wait(protocol.Committed)
            guard._agent.hear(protocol.Leave("n1", 75))

        agent = threading.Thread(target=leave, name="agent")
        agent.start()
        trained(values)
        expected = bits({"model": model}, rng=False)
        with pytest.raises(Preempted):
            guard.step()
        agent.join(PATIENCE)
    check(store, change, 2, expected)


def test_parameters_added_later_may_be_trained() -> None:
    """An adapter and its group of parameters: its moments are saved under its name, and training goes on bit for bit."""

    def make() -> dict[str, Any]:
        seed()
        values = values_of(Model())
        values["model"].heads[0].requires_grad_(False)
        return values

    def grow(values: dict[str, Any]) -> None:
        adapter(values["model"])
        weights = [*values["model"].adapter.requires_grad_(True).parameters()]
        values["optimizer"].add_param_group({"params": weights, "lr": 0.5})

    def step(values: dict[str, Any]) -> None:
        values["optimizer"].zero_grad()
        values["model"].adapter(torch.rand(2, 3)).sum().backward()
        values["optimizer"].step()

    store, values = WatchedStore(), make()
    with guarded(store, values) as guard:
        guard.restore()
        for _ in range(6):
            guard.step()
        grow(values)
        for _ in range(2):
            step(values)
            guard.step()
        saved = guard.save()
        step(values)
        expected = bits(values, rng=False)
    fresh = make()
    grow(fresh)
    with guarded(store, fresh) as guard:
        assert guard.restore() == saved.step == 8
        step(fresh)
    assert different(bits(fresh, rng=False), expected) == []


def test_changes_before_the_restore_are_restored_into() -> None:
    """Between `register` and `restore` too: a layer, and a dtype."""
    for change in (adapter, free_buffer, lambda model: model.double()):
        seed()
        store, model = WatchedStore(), Model()
        change(model)
        expected = bits({"model": model}, rng=False)
        with guarded(store, values_of(model)) as guard:
            guard.restore()
            guard.save()
        seed(1)
        fresh = Model()
        with guarded(store, values_of(fresh)) as guard:
            change(fresh)
            guard.restore()
        assert different(bits({"model": fresh}, rng=False), expected) == []


class Computed(nn.Module):
    """Its state dict has an entry that a hook computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, state, prefix, _: state.__setitem__(f"{prefix}sum", 1.0)
        )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.LazyLinear(3), r"model\.late\.weight is not initialized yet"),
        (lambda: nn.Linear(2, 2, device="meta"), r"model\.late\.weight is on the meta device"),
        (Computed, r"model got a part after register .*register the module when it is complete"),
    ],
    ids=["lazy", "meta", "computed"],
)
def test_changes_that_cannot_be_followed_are_named(make: Callable[[], nn.Module], said: str) -> None:
    """At a boundary within a second, in one line: not at the notice, and not never."""
    store, model, clock = WatchedStore(), Model(), ManualClock()
    with guarded(store, values_of(model), clock=clock) as guard:
        guard.restore()
        guard.step()
        model.late = make()
        clock.advance(1)
        with pytest.raises(StateError, match=said) as raised:
            guard.step()
        assert "\n" not in str(raised.value)
        guard.step()  # a script that caught it
        with pytest.raises(StateError, match=said):
            guard.save()
        del model.late
        guard.step()
        assert guard.save().step == 3
    assert store.kinds()["manifests"] == 1


def test_parameters_of_a_module_that_nobody_registered_are_refused_as_ever() -> None:
    """What is followed is what hangs in a registered module."""
    values = values_of(Model())
    with guarded(WatchedStore(), values) as guard:
        guard.restore()
        values["optimizer"].add_param_group({"params": [frozen(3)]})
        with pytest.raises(StateError, match="steps 1 parameters that no registered module holds"):
            guard.step()


@pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")
def test_a_module_that_stays_as_it_is_is_listed_once() -> None:
    """Replacing a buffer's tensor, training and evaluating hang nothing in; a scripted module is looked at too."""
    model = Model()
    tables = ModuleTables(model)
    model.body[1].running_mean = torch.rand(4)
    model.body[0].weight = frozen(4, 4)
    model.eval().double()
    assert tables.same()
    free_buffer(model)
    assert not tables.same()
    assert ModuleTables(model).same()
    assert ModuleTables(nn.Identity()).same()
    assert ModuleTables(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))).same()
