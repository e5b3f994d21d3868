"""A checkpoint names a module's tensors as if no wrapper were there, wherever the wrapper is."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.state.misuse.unregistered import parameter_names
from tests.fakes.training import Job, guarded, seed, step_on
from tests.fakes.watched_store import WatchedStore
from tests.tiers import few_fast

pytestmark = pytest.mark.torch


class Model(nn.Module):
    """A part that may be wrapped, beside one that never is, with buffers and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Noted())
        self.head = nn.Linear(4, 2)


class Noted(nn.Identity):
    calls = 0

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def compiled(module: nn.Module) -> nn.Module:
    wrapped = torch.compile(module, backend="eager")
    assert isinstance(wrapped, nn.Module)
    return wrapped


def in_parts(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    def wrapped(model: nn.Module) -> nn.Module:
        model.body = wrap(model.get_submodule("body"))
        return model

    return wrapped


def every_layer_compiled(model: nn.Module) -> nn.Module:
    body = model.body
    assert isinstance(body, nn.Sequential)
    for index, layer in enumerate(body):
        body[index] = compiled(layer)
    return model


ddp = nn.parallel.DistributedDataParallel
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "compiled": compiled,
    "compiled-part": in_parts(compiled),
    "compiled-layers": every_layer_compiled,
    "ddp": ddp,
    "ddp-part": in_parts(ddp),
    "ddp-of-compiled": lambda model: ddp(compiled(model)),
    "compiled-ddp": lambda model: compiled(ddp(model)),
    "data-parallel": nn.DataParallel,
    "data-parallel-part": in_parts(nn.DataParallel),
    "checkpointed": checkpoint_wrapper,
    "checkpointed-part": in_parts(checkpoint_wrapper),
    "compiled-in-checkpointed": in_parts(lambda module: checkpoint_wrapper(compiled(module))),
    "checkpointed-in-compiled": lambda model: compiled(in_parts(checkpoint_wrapper)(model)),
}


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def job_of(wrap: Callable[[nn.Module], nn.Module], average: Callable[[nn.Module], nn.Module]) -> Job:
    """A training of a wrapped model, with an average of the wrapped one."""
    seed()
    inner = Model()
    optimizer = torch.optim.AdamW(inner.parameters(), lr=0.1)
    ema = AveragedModel(average(copy.deepcopy(inner)))
    *_, norm, noted = inner.body
    assert isinstance(noted, Noted)
    assert isinstance(norm, nn.BatchNorm1d)
    job = Job({"model": wrap(inner), "optimizer": optimizer, "ema": ema})

    def step(number: int) -> None:
        for parameter in inner.parameters():
            parameter.grad = torch.rand_like(parameter)
        optimizer.step()
        noted.calls += 1
        norm.get_buffer("running_mean").add_(1)

    def tensors() -> list[torch.Tensor]:
        own = [*inner.parameters(), *inner.buffers(), *ema.parameters(), *ema.buffers()]
        kept = (t for p in inner.parameters() for t in optimizer.state[p].values())
        return [torch.tensor(noted.calls), *(t.detach().clone() for t in (*own, *kept))]

    job.step = step
    job.tensors = tensors  # type: ignore[attr-defined]
    return job


@pytest.mark.parametrize("later", WRAPPERS)
@pytest.mark.parametrize("earlier", few_fast(["checkpointed-in-compiled", "plain"]))
def test_a_wrapper_may_come_and_go_between_two_lives(
    earlier: str, later: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The moments of its parameters, its buffers and an average of it come back too, without a word."""
    store, plain = WatchedStore(), WRAPPERS["plain"]
    job = job_of(WRAPPERS[earlier], WRAPPERS[earlier] if "ddp" not in earlier else plain)
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        guard.save()
    fresh = job_of(WRAPPERS[later], WRAPPERS[later] if "ddp" not in later else plain)
    fresh.step(9)
    with guarded(store, fresh.values) as guard, caplog.at_level(logging.WARNING):
        caplog.clear()
        assert guard.restore() == 2
    assert all(map(torch.equal, job.tensors(), fresh.tensors()))  # type: ignore[attr-defined]
    assert caplog.messages == []


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_names_have_no_wrapper_in_them(wrap: str) -> None:
    store, job = WatchedStore(), job_of(WRAPPERS[wrap], lambda model: model)
    with guarded(store, job.values) as guard:
        guard.restore()
        guard.save()
    whole = find_whole(store, "run")
    assert whole is not None
    (manifest,) = whole.manifests
    saved = {name.partition("/")[2] for name in whole.tensors if name.startswith("model/")}
    assert saved == {*Model().state_dict()} - {"body.2._extra_state"}
    assert "ema/head.weight" in whole.tensors
    assert "ema/n_averaged" in whole.tensors
    named = parameter_names({"model": job.values["model"]}).values()
    assert {*named} == {f"model.{name}" for name, _ in Model().named_parameters()}
    assert manifest.state


def test_a_part_that_is_wrapped_while_it_trains_keeps_its_names() -> None:
    store, job = WatchedStore(), job_of(lambda model: model, lambda model: model)
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        in_parts(compiled)(job.values["model"])
        step_on(guard, job, 1)
        guard.save()
    fresh = job_of(lambda model: model, lambda model: model)
    with guarded(store, fresh.values) as guard:
        assert guard.restore() == 2
    assert all(map(torch.equal, job.tensors(), fresh.tensors()))  # type: ignore[attr-defined]


def test_an_average_of_an_average_has_two_counts(caplog: pytest.LogCaptureFixture) -> None:
    store = WatchedStore()
    counts = []
    for life in range(2):
        ema = AveragedModel(AveragedModel(Model()))
        with guarded(store, {"ema": ema}) as guard:
            guard.restore()
            inner = ema.get_buffer("module.n_averaged")
            counts.append((ema.get_buffer("n_averaged").item(), inner.item()))
            if not life:
                ema.get_buffer("n_averaged").fill_(3)
                inner.fill_(5)
                guard.step()
                guard.save()
    assert counts == [(0, 0), (3, 5)]


def test_an_attribute_of_the_same_name_that_is_no_wrappers_stays_in_the_path() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    store = WatchedStore()
    with guarded(store, {"model": Own()}) as guard:
        guard.restore()
        guard.save()
    whole = find_whole(store, "run")
    assert whole is not None
    assert "model/module.weight" in whole.tensors
