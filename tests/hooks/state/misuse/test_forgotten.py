"""Averages, scalers and loaders that nothing registered holds: each kind is named in one line, and its exact twins log nothing."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, RandomSampler

import spotguard
from tests.fakes.loops import said
from tests.fakes.passes import WIDTH, Rows
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

AVERAGE, SCALER, LOADER = "an average of weights", "a gradient scaler", "a loader"


class Script:
    """What a script has before `register`, and what it does in a turn beside or in place of the usual things."""

    def __init__(self) -> None:
        seed()
        self.model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.registered: dict[str, Any] = {}
        self.batch: Callable[[], torch.Tensor] = lambda: torch.randn(4, WIDTH)
        self.step: Callable[[torch.Tensor], None] = self._step
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    def _step(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()

    def turn(self) -> None:
        self.before()
        self.optimizer.zero_grad()
        self.step(self.model(self.batch()).square().mean())
        self.after()

    def run(self, turns: int = 9) -> None:
        values = {"model": self.model, "optimizer": self.optimizer, **self.registered}
        with guarded(WatchedStore(), values) as guard:
            for _ in range(guard.restore(), turns):
                self.turn()
                guard.step()


class Holder:
    """Saves what it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def state_dict(self) -> Any:
        return copy.deepcopy(self.held.state_dict())

    def load_state_dict(self, state: Any) -> None:
        self.held.load_state_dict(state)


#: What a script has in a global name.
KEPT: dict[str, Any] = {}


class Elsewhere:
    """Saves what a global name holds, under a name that nothing leads to."""

    def state_dict(self) -> Any:
        return copy.deepcopy(KEPT["ema"].state_dict())

    def load_state_dict(self, state: Any) -> None:
        KEPT["ema"].load_state_dict(state)


# --- averages --------------------------------------------------------------------------------------------------


def of_torch(script: Script) -> nn.Module:
    ema = AveragedModel(script.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    script.after = lambda: ema.update_parameters(script.model)
    return ema


def late(script: Script) -> nn.Module:
    """Begins at turn 6, behind the searches."""
    ema, turns = AveragedModel(script.model), iter(range(100))
    script.after = lambda: ema.update_parameters(script.model) if next(turns) > 5 else None
    return ema


@pytest.mark.parametrize("make", [of_torch, late])
def test_average_that_is_not_registered_is_named_in_one_line(
    make: Callable[[Script], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    kept = make(script)
    script.run(33 if make is late else 5)
    (line,) = said(caplog)
    assert line.startswith(f"{AVERAGE} is not registered (")
    assert "as in ema=ema [SG425]" in line
    assert "AveragedModel" in line
    del kept


@pytest.mark.parametrize(
    ("make", "holder"),
    [
        (of_torch, lambda ema: {"ema": ema}),
        (of_torch, lambda ema: {"ema": Holder(ema)}),
        (of_torch, lambda ema: {"ema": ema.module, "count": ema.n_averaged}),
        (of_torch, lambda ema: {"ema": dict(ema.state_dict())}),
        (of_torch, lambda ema: {"ema": Elsewhere()}),
        (late, lambda ema: {"ema": Holder(ema)}),
    ],
)
def test_registered_average_is_not_named(
    make: Callable[[Script], Any], holder: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    KEPT["ema"] = make(script)
    script.registered = holder(KEPT["ema"])
    script.run(33 if make is late else 5)
    assert [line for line in said(caplog) if "SG425" in line] == []


def as_a_module(script: Script) -> Any:
    ema = copy.deepcopy(script.model)

    def update() -> None:
        with torch.no_grad():
            for mean, weight in zip(ema.parameters(), script.model.parameters(), strict=True):
                mean.mul_(0.9).add_(weight, alpha=0.1)

    script.after = update
    return ema


def in_a_dict(script: Script) -> Any:
    ema = {name: each.detach().clone() for name, each in script.model.named_parameters()}

    def update() -> None:
        for name, each in script.model.named_parameters():
            ema[name].lerp_(each.detach(), 0.1)

    script.after = update
    return ema


def in_slots(script: Script) -> Any:
    class Slow:
        __slots__ = ("weights",)

        def __init__(self, weights: list[torch.Tensor]) -> None:
            self.weights = weights

    weights = [each.detach().clone() for each in script.model.parameters()]
    slow = Slow(weights)

    def update() -> None:
        with torch.no_grad():
            for mean, weight in zip(slow.weights, script.model.parameters(), strict=True):
                mean.lerp_(weight, 0.5)

    script.after = update
    return slow


COPIES = [as_a_module, in_a_dict, in_slots]


@pytest.mark.parametrize("make", COPIES)
def test_copy_of_weights_of_the_script_s_own_is_named_in_one_line(
    make: Callable[[Script], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    kept = make(script)
    script.run()
    (line,) = said(caplog)
    assert line.startswith(
        "a copy of weights that training changes is not registered (4 tensors like those of model)"
    )
    assert "unless each turn makes it anew" in line
    del kept


@pytest.mark.parametrize(
    ("make", "holder"),
    [
        (as_a_module, lambda ema: ema),
        (as_a_module, Holder),
        (in_a_dict, lambda ema: ema),
        (in_slots, lambda slow: {"slow": slow.weights}),
    ],
)
def test_registered_copy_is_not_named(
    make: Callable[[Script], Any], holder: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    kept = make(script)
    script.registered = {"ema": holder(kept)}
    script.run()
    assert [line for line in said(caplog) if "SG425" in line] == []


def teacher(script: Script) -> Any:
    """A frozen teacher, whose batch statistics move all the same."""
    frozen = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8)).requires_grad_(False)
    script.before = lambda: frozen(torch.randn(4, WIDTH))
    return frozen


def probe(script: Script) -> Any:
    """A copy that each turn makes and trains anew."""

    def train() -> None:
        inner = copy.deepcopy(script.model)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        inner(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()

    script.before = train
    return None


def read_only(script: Script) -> Any:
    """An optimizer that is made for its state alone."""
    return torch.optim.Adam(script.model.parameters())


def other_training(script: Script) -> Any:
    """Another training in a thread, in step with the turns, which has an average, a scaler and a shuffled loader."""
    other = Script()
    kept = [of_torch(other), scaled(other), iterated(other)]
    other.after()

    def turn() -> None:
        thread = threading.Thread(target=other.turn)
        thread.start()
        thread.join()

    script.before = turn
    return kept


def set_anew(script: Script) -> Any:
    """A copy for the losses of one turn, as of a proximal term."""
    anchor = copy.deepcopy(script.model)
    script.before = lambda: anchor.load_state_dict(script.model.state_dict())
    return anchor


def synchronized(script: Script) -> Any:
    """A copy for evaluations, set behind each step."""
    shown = [each.detach().clone() for each in script.model.parameters()]
    script.after = lambda: [
        one.copy_(each.detach()) for one, each in zip(shown, script.model.parameters(), strict=True)
    ]
    return shown


def gathered(script: Script) -> Any:
    """The last gradients, for a log."""
    last = [torch.zeros_like(each) for each in script.model.parameters()]
    script.after = lambda: [
        one.copy_(each.grad if each.grad is not None else one)
        for one, each in zip(last, script.model.parameters(), strict=True)
    ]
    return last


def freed(script: Script) -> Any:
    """Weights whose memory the script gives back between uses, as offloading does: reading them ends the process."""
    offloaded = [each.detach().clone() for each in script.model.parameters()]

    def free() -> None:
        for each in offloaded:
            each.untyped_storage().resize_(0)

    script.after = free
    return offloaded


STILL: list[Callable[[Script], Any]] = [
    teacher,
    probe,
    read_only,
    set_anew,
    synchronized,
    gathered,
    freed,
]


@pytest.mark.parametrize("make", STILL)
def test_tensors_that_follow_no_weights_are_not_named(
    make: Callable[[Script], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    kept = make(script)
    script.run()
    assert (said(caplog), kept) == ([], kept)


# --- scalers ---------------------------------------------------------------------------------------------------


def scaled(script: Script, enabled: bool = True) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=enabled)

    def step(loss: torch.Tensor) -> None:
        scaler.scale(loss).backward()
        scaler.step(script.optimizer)
        scaler.update()

    script.step = step
    return scaler


def scaled_by_hand(script: Script) -> Any:
    scaler = scaled(script)

    def step(loss: torch.Tensor) -> None:
        scaler.scale(loss).backward()
        scaler.unscale_(script.optimizer)
        nn.utils.clip_grad_norm_(script.model.parameters(), 1.0)
        scaler.step(script.optimizer)
        scaler.update()

    script.step = step
    return scaler


@pytest.mark.parametrize("make", [scaled, scaled_by_hand])
def test_scaler_that_is_not_registered_is_named_in_one_line(
    make: Callable[[Script], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    scaler = make(script)
    script.run()
    (line,) = said(caplog)
    assert line.startswith(
        f"{SCALER} is not registered ({type(scaler).__name__}), so a resumed run begins it anew"
    )
    assert "as in scaler=scaler [SG425]" in line


def noted(scaler: Any, script: Script) -> Any:
    """A dict in which the script keeps the scaler's state."""
    notes: dict[str, Any] = {"scaler": scaler.state_dict()}
    script.after = lambda: notes.update(scaler=scaler.state_dict())
    return notes


@pytest.mark.parametrize("holder", [lambda scaler, _: scaler, lambda scaler, _: Holder(scaler), noted])
def test_registered_scaler_is_not_named(
    holder: Callable[[Any, Script], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    script.registered["scaler"] = holder(scaled(script), script)
    script.run()
    assert said(caplog) == []


def test_scaler_that_is_off_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    scaler = scaled(script, enabled=False)
    script.run()
    assert (said(caplog), scaler.is_enabled()) == ([], False)


# --- loaders ---------------------------------------------------------------------------------------------------


def iterated(script: Script, loader: Any = None) -> Any:
    loader = DataLoader(Rows(80), 4, shuffle=True) if loader is None else loader

    def batches() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    endless = batches()
    script.batch = lambda: next(endless)
    return loader


def by_hand(script: Script) -> Any:
    loader = DataLoader(Rows(80), 4, shuffle=True)
    batches = iter(loader)
    script.batch = lambda: next(batches)
    return loader


def with_a_worker(script: Script) -> Any:
    return iterated(script, DataLoader(Rows(80), 4, shuffle=True, num_workers=1))


def accumulated(script: Script) -> Any:
    loader = by_hand(script)
    take = script.batch
    script.batch = lambda: take() + take()
    return loader


def stateful(script: Script) -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return iterated(script, torchdata.StatefulDataLoader(Rows(80), 4, shuffle=True))


@pytest.mark.parametrize("make", [iterated, by_hand, with_a_worker, accumulated, stateful])
def test_loader_that_is_not_registered_is_named_in_one_line(
    make: Callable[[Script], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    loader = make(script)
    script.run()
    (line,) = said(caplog)
    assert line.startswith(
        f"{LOADER} is not registered (of {type(loader.dataset).__name__}), so a resumed run"
    )
    assert "loader = spotguard.ResumableLoader(loader)" in line


def wrapped(script: Script) -> None:
    loader = spotguard.ResumableLoader(DataLoader(Rows(80), 4, shuffle=True))
    script.registered["loader"] = iterated(script, loader)


def wound(script: Script) -> None:
    """Has a generator of its own, and the script leaves out the batches that are over."""
    iterated(script, DataLoader(Rows(80), 4, shuffle=True, generator=torch.Generator().manual_seed(1)))


class Seeded(RandomSampler):
    """Seeds each of its passes."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self.data_source), generator=torch.Generator().manual_seed(7))
        return iter(order.tolist())


def seeded(script: Script) -> None:
    iterated(script, DataLoader(Rows(80), 4, sampler=Seeded(Rows(80))))


def in_order(script: Script) -> None:
    iterated(script, DataLoader(Rows(80), 4))


def validated(script: Script) -> None:
    """Iterates a loader whole in each turn, with workers that stay or without."""
    held_out = DataLoader(Rows(8), 4, shuffle=True)

    def validate() -> None:
        with torch.no_grad():
            for each in held_out:
                script.model(each)

    script.after = validate


def looked_at(script: Script) -> None:
    """A batch that the script only looks at, with an iterator that stays."""
    batches = iter(DataLoader(Rows(8), 4, shuffle=True))
    first = next(batches)
    script.before = lambda: (batches, first)


def state_in_a_dict(script: Script) -> None:
    """The script saves the state of its loader itself."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    loader = torchdata.StatefulDataLoader(Rows(80), 4, shuffle=True)
    notes: dict[str, Any] = {}
    iterated(script, loader)
    script.after = lambda: notes.update(loader=loader.state_dict())
    script.registered["notes"] = notes


@pytest.mark.parametrize("make", [wrapped, wound, seeded, in_order, validated, looked_at, state_in_a_dict])
def test_loader_whose_order_may_be_repeated_is_not_named(
    make: Callable[[Script], None], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    make(script)
    script.run()
    assert said(caplog) == []


# --- the search ------------------------------------------------------------------------------------------------


def test_second_training_of_the_process_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    kept = other_training(script)
    script.run()
    assert [line for line in said(caplog) if "SG425" in line] == []
    assert len(kept) == 3


def test_one_run_has_a_line_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    kept = [of_torch(script), scaled(script), iterated(script)]
    script.run()
    assert sorted(line.split(" is not")[0] for line in said(caplog)) == sorted([AVERAGE, SCALER, LOADER])
    assert len(kept) == 3


class Averaging:
    """Wraps an optimizer, and averages the weights behind each step."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.mean = [p.detach().clone() for p in self.params()]

    def params(self) -> list[torch.Tensor]:
        return [p for group in self.inner.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        for mean, weight in zip(self.mean, self.params(), strict=True):
            mean.lerp_(weight, 0.1)


class Trainer(Averaging):
    """Holds all that trains."""

    def __init__(self, script: Script) -> None:
        super().__init__(script.optimizer)
        self.model, self.scaler = script.model, scaled(script)
        self.loader = iterated(script)

    def train_step(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()
        self.scaler.step(self)
        self.scaler.update()


def test_average_in_a_wrapper_of_the_optimizer_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    wrapper = Averaging(script.optimizer)

    def step(loss: torch.Tensor) -> None:
        loss.backward()
        wrapper.step()

    script.step = step
    script.run()
    (line,) = said(caplog)
    assert line.startswith("Averaging.mean changes during training")


def test_all_that_a_trainer_holds_has_a_line_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    trainer = Trainer(script)
    trainer.param_groups = script.optimizer.param_groups  # type: ignore[attr-defined]
    script.step = trainer.train_step
    script.run()
    lines = said(caplog)
    assert len(lines) == 3
    assert sum(line.startswith((SCALER, LOADER, "Trainer.mean changes")) for line in lines) == 3


def test_process_is_searched_twice_in_a_run_and_never_in_a_resumed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches, store, ask = list[Any](), WatchedStore(), gc.get_referrers

    def counted(*objects: Any) -> list[Any]:
        searches.append(objects)
        return ask(*objects)

    monkeypatch.setattr(gc, "get_referrers", counted)
    for until, expected in ((5, 2), (9, 2)):
        script = Script()
        with guarded(store, {"model": script.model, "optimizer": script.optimizer}) as guard:
            for _ in range(guard.restore(), until):
                script.turn()
                guard.step()
            guard.save()
        assert len(searches) == expected


class Jealous(type):
    """A metaclass whose classes must not be asked."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError

    def __instancecheck__(self, instance: object) -> bool:
        raise AssertionError


class Foreign(metaclass=Jealous):
    """Refers to classes of torch, and has code in all that can be asked of it."""

    def __init__(self) -> None:
        self.kinds = [torch.Tensor, torch.amp.GradScaler]
        self.cls = torch.Tensor

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError


def test_no_code_of_foreign_objects_is_called(caplog: pytest.LogCaptureFixture) -> None:
    foreign, script = Foreign(), Script()
    scaler = scaled(script)
    script.run()
    assert [SCALER in line for line in said(caplog)] == [True]
    assert foreign.cls is torch.Tensor
    assert scaler is not None


def test_nothing_that_is_followed_is_kept_alive() -> None:
    script = Script()
    kept = [of_torch(script), scaled(script), iterated(script)]
    references = [weakref.ref(each) for each in kept]
    values = {"model": script.model, "optimizer": script.optimizer}
    with guarded(WatchedStore(), values) as guard:
        for _ in range(guard.restore(), 2):
            script.turn()
            guard.step()
        fresh = Script()
        script.after, script.batch, script.step = fresh.after, fresh.batch, script._step
        kept.clear()
        gc.collect()
        assert [each() for each in references] == [None] * 3
