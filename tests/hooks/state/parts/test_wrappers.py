"""A wrapped optimizer is saved as torch's own: in place, hooked, and bit for bit; or it is copied, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.state.parts.module import ModulePart
from spotguard.hooks.state.parts.optimizers.optimizer import OptimizerPart
from spotguard.hooks.state.parts.values import StatefulPart
from spotguard.providers.errors import StateError
from spotguard.testing import preempt
from tests.fakes import foreign_optimizers as foreign
from tests.fakes.training import Job, different, guarded, seed, step_on, wait_shut
from tests.fakes.watched_store import WatchedStore
from tests.hooks.state.parts.optimizers.test_optimizer import saved_and_resumed

pytestmark = pytest.mark.torch

Wrap = Callable[[nn.Sequential], Any]


def adam(layer: nn.Module) -> Optimizer:
    return torch.optim.AdamW(layer.parameters(), lr=0.05)


WRAPPERS: dict[str, Wrap] = {
    "accelerate": lambda model: foreign.Accelerated(adam(model)),
    "accelerate, twice": lambda model: foreign.Accelerated(foreign.Accelerated(adam(model))),
    "fabric": lambda model: foreign.FabricOptimizer(adam(model)),
    "torchtitan": lambda model: foreign.Container(
        [adam(model[0]), torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)]
    ),
    "torchtitan, of one": lambda model: foreign.Container([adam(model)]),
    "horovod": lambda model: foreign.distributed(adam(model)),
}


def wrapped(wrap: Wrap) -> Job:
    seed()
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = wrap(model)
    job = Job({"model": model, "optimizer": optimizer})

    def step(number: int) -> None:
        model.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()

    job.step = step
    return job


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_that_adds_nothing_is_looked_through(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its state is read in place; and the gate is in its way, in mid-step: no boundary is waited for."""
    job, store = wrapped(WRAPPERS[kind]), WatchedStore()
    with guarded(store, job.values) as guard:
        read = [part.name for part in guard._state.parts if isinstance(part, OptimizerPart)]
        assert read == (["optimizer.0", "optimizer.1"] if kind == "torchtitan" else ["optimizer"])
        assert guard._state.boundary_only == ""
        assert not [part for part in guard._state.parts if isinstance(part, StatefulPart)]
        guard.restore()
        step_on(guard, job, 0, 1)
        preempt(guard)
        wait_shut(guard)
        with pytest.raises(Preempted):
            job.step(2)
    assert [name[:9] for name in store.manifests()] == ["000000002"]
    assert "waits for the next guard.step()" not in caplog.text


@pytest.mark.parametrize("kind", [kind for kind in WRAPPERS if "torchtitan" not in kind])
def test_a_wrapped_optimizer_goes_on_bit_for_bit(kind: str, folder: Path) -> None:
    saved_and_resumed(lambda: wrapped(WRAPPERS[kind]), folder)


@pytest.mark.parametrize("kind", [kind for kind in WRAPPERS if "torchtitan" in kind])
def test_a_container_goes_on_bit_for_bit_and_is_not_asked(kind: str, folder: Path) -> None:
    """Its `state_dict` would step: what was saved before the first step has no moments."""

    def bits_of(job: Job) -> dict[str, int]:
        inside = job.values["optimizer"].optimizers
        return Job({"model": job.values["model"], **{str(i): each for i, each in enumerate(inside)}}).bits()

    plain = wrapped(WRAPPERS[kind])
    for number in range(5):
        plain.step(number)
    job = wrapped(WRAPPERS[kind])
    with guarded(folder, job.values) as guard:
        guard.restore()
        guard.save()
        assert not any(each.state for each in job.values["optimizer"].optimizers)
        step_on(guard, job, 0, 1, 2)
        guard.save()
    fresh = wrapped(WRAPPERS[kind])
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 3
        step_on(guard, fresh, 3, 4)
    assert different(bits_of(fresh), bits_of(plain)) == []


def test_a_checkpoint_of_a_wrapped_optimizer_restores_into_a_plain_one(folder: Path) -> None:
    """The wrapper is in no checkpoint."""
    job = wrapped(WRAPPERS["accelerate"])
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        guard.save()
    plain = wrapped(adam)
    with guarded(folder, plain.values) as guard:
        assert guard.restore() == 2
    assert different(plain.bits(), job.bits()) == []


def test_a_wrapper_that_keeps_something_is_copied_at_boundaries(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By its own word, and a save waits for the boundary: nothing says when it begins to change."""
    saved_and_resumed(lambda: wrapped(lambda model: foreign.WithMean(adam(model))), folder)
    assert "torch's hooks do not reach optimizer (WithMean)" in caplog.text


def test_wrapper_that_gives_its_state_once_it_has_some_is_copied(folder: Path) -> None:
    """At `register` it gives the inner optimizer's alone."""

    class Late(foreign.Accelerated):
        def __init__(self, optimizer: Optimizer) -> None:
            super().__init__(optimizer)
            self.means: list[torch.Tensor] = []

        def state_dict(self) -> dict[str, Any]:
            inner = super().state_dict()
            return {**inner, "means": self.means} if self.means else inner

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.optimizer.load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
            self.means = state_dict.get("means", [])

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            grads = [p.grad for group in self.param_groups for p in group["params"]]
            self.means = [m.lerp(g, 0.1) for m, g in zip(self.means or grads, grads, strict=True)]
            for grad, mean in zip(grads, self.means, strict=True):
                grad.copy_(mean)
            super().step(closure)

    saved_and_resumed(lambda: wrapped(lambda model: Late(adam(model))), folder)


def test_numbers_that_a_wrapper_keeps_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In one line, wherever they are. One that stays the same is no state, nor one that only counts."""

    class Clipped(foreign.Accelerated):
        def __init__(self, optimizer: Optimizer) -> None:
            super().__init__(optimizer)
            self.history: list[float] = []
            self.largest, self.total, self.steps = 1.0, {"norm": 0.0}, [0]

        def step(self, closure: Any = None) -> Any:
            params = [p for group in self.param_groups for p in group["params"]]
            self.steps[0] += 1
            self.history.append(float(nn.utils.clip_grad_norm_(params, self.largest + self.total["norm"])))
            if len(self.history) > 1:
                self.total["norm"] += self.history[-1]
            super().step(closure)

    job = wrapped(lambda model: Clipped(adam(model)))
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(5))
    (line,) = [each for each in caplog.messages if "no checkpoint has it" in each]
    assert line.startswith("optimizer.history (and 1 more) changes during training")


def test_a_wrapper_that_moves_weights_before_the_step_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    """It looks like one that adds nothing, and what it does in front of the hook is an edit between two boundaries."""

    class Climbing(foreign.Accelerated):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for param in group["params"]:
                    param.data.view(-1)[:1].mul_(1.01)
            super().step(closure)

    job, store = wrapped(lambda model: Climbing(adam(model))), WatchedStore()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1, 2)
        assert guard._state.boundary_only != ""
    assert "from now on a save waits for the next guard.step(): " in caplog.text


def test_a_wrapper_that_says_nothing_and_cannot_be_hooked_is_refused(folder: Path) -> None:
    """It was an AttributeError from inside torch."""

    def wrap(model: nn.Sequential) -> Any:
        made = foreign.Bare(adam(model))
        vars(made)["mean"] = torch.ones(2)
        return made

    job = wrapped(wrap)
    with (
        pytest.raises(StateError, match="optimizer is a Bare that has not called"),
        guarded(folder, job.values),
    ):
        pass
    assert list(folder.iterdir()) == []


def test_a_wrapper_whose_state_dict_fails_is_refused(folder: Path) -> None:
    """By name, not by an error from inside torch."""

    class Old(foreign.WithMean):
        def state_dict(self) -> dict[str, Any]:
            return Optimizer.state_dict(self)

    job = wrapped(lambda model: Old(adam(model)))
    said = r"optimizer: Old.state_dict\(\) fails \(AttributeError: "
    with pytest.raises(StateError, match=said), guarded(folder, job.values):
        pass
    assert list(folder.iterdir()) == []


def test_a_scaler_inside_is_to_be_registered(folder: Path) -> None:
    """Its scale is state, and in nobody's state dict but its own."""
    scaler = torch.amp.GradScaler("cpu")
    job = wrapped(lambda model: foreign.Accelerated(adam(model), scaler))
    said = re.escape("optimizer (Accelerated) scales gradients by optimizer.scaler (GradScaler), whose scale")
    with pytest.raises(StateError, match=said), guarded(folder, job.values):
        pass
    with guarded(folder, {**job.values, "scaler": scaler}) as guard:
        assert guard._state.boundary_only == ""
    off = wrapped(lambda model: foreign.Accelerated(adam(model), torch.amp.GradScaler("cpu", enabled=False)))
    with guarded(folder, off.values):
        pass


def test_a_container_that_keeps_state_of_its_own_is_not_looked_through(folder: Path) -> None:
    """Nor one that steps parameters which none of its own has."""
    job = wrapped(WRAPPERS["torchtitan, of one"])
    job.values["optimizer"].state[job.values["model"][0].weight] = {"mean": torch.ones(2)}
    with guarded(folder, job.values) as guard:
        assert [part.name for part in guard._state.parts if isinstance(part, StatefulPart)] == ["optimizer"]
    other = wrapped(lambda model: foreign.Container([adam(model[0])]))
    other.values["optimizer"].add_param_group({"params": list(other.values["model"][2].parameters())})
    with guarded(folder, other.values) as guard:
        assert [part.name for part in guard._state.parts if isinstance(part, StatefulPart)] == ["optimizer"]


def test_a_subclass_is_loaded_by_its_own_method_and_rounds_nothing(folder: Path) -> None:
    """Moments in float32 beside weights in bfloat16 come back as they were, and its groups are the same objects."""

    def make() -> Job:
        job = wrapped(lambda model: foreign.distributed(adam(model.to(torch.bfloat16))))
        optimizer, model = job.values["optimizer"], job.values["model"]
        for number, p in enumerate(model.parameters()):
            moments = {"exp_avg": torch.rand(p.shape) + number, "exp_avg_sq": torch.rand(p.shape)}
            optimizer.state[p] = {"step": torch.tensor(0.0), **moments}
        return job

    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        guard.save()
    torch.manual_seed(1)
    fresh = make()
    groups, loads = fresh.values["optimizer"].param_groups, fresh.values["optimizer"].loads
    with guarded(folder, fresh.values) as guard:
        guard.restore()
    assert fresh.values["optimizer"].loads == loads + 1
    assert fresh.values["optimizer"].param_groups is groups
    assert different(fresh.bits(), job.bits()) == []


def test_state_that_a_dynamic_subclass_adds_is_refused(folder: Path) -> None:
    """Horovod's Adasum begins each step from a copy of the weights that nobody saves."""
    job = wrapped(WRAPPERS["horovod"])
    vars(job.values["optimizer"])["_starting_models"] = {
        p: torch.zeros_like(p) for p in job.values["model"].parameters()
    }
    with (
        pytest.raises(StateError, match=re.escape("optimizer._starting_models[…]")),
        guarded(folder, job.values),
    ):
        pass
    assert list(folder.iterdir()) == []


def test_a_module_that_gives_the_state_of_the_one_inside_is_looked_through(folder: Path) -> None:
    """Fabric's: its weights are read in place, under the names of the plain model."""
    job = wrapped(WRAPPERS["fabric"])
    face = foreign.FabricModule(job.values["model"])
    with guarded(folder, {**job.values, "model": face}) as guard:
        assert isinstance(guard._state.parts[0], ModulePart)
        guard.restore()
        step_on(guard, job, 0, 1)
        guard.save()
    plain = wrapped(adam)
    with guarded(folder, plain.values) as guard:
        assert guard.restore() == 2
    assert different(plain.bits(), job.bits()) == []


def test_a_module_with_words_of_its_own_is_believed(folder: Path) -> None:
    """One name, or one tensor, other than the module's inside."""

    class Renamed(foreign.FabricModule):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {f"its.{key}": value for key, value in super().state_dict(*args, **kwargs).items()}

    class Copied(foreign.FabricModule):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {key: value.detach() for key, value in super().state_dict(*args, **kwargs).items()}

    class Short(foreign.FabricModule):
        def state_dict(self) -> Any:  # type: ignore[override]
            return super().state_dict()

    for face in (Renamed, Copied, Short):
        with guarded(folder, {"model": face(nn.Linear(2, 2))}) as guard:
            assert isinstance(guard._state.parts[0], StatefulPart), face
