"""A registered module: whatever its tensors look like and wherever they hang, they come back where they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.ao import quantization
from torch.nn.utils import prune

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.providers.errors import StateError
from spotguard.providers.stores.file import FileStore
from tests.fakes.loops import said
from tests.fakes.training import Job, bits, different, guarded, seed, small, step_on, trajectory
from tests.hooks.state.parts.optimizers.test_optimizer import saved_and_resumed

pytestmark = pytest.mark.torch


class Odd(nn.Module):
    """Tensors of every make in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.rand(()))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.rand(4, 6).mT)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.strided = nn.Parameter(torch.rand(10, 8)[::2, 1::3])
        self.view = nn.Parameter(torch.rand(1_000_000)[500:510])
        self.expanded: torch.Tensor
        self.register_buffer("expanded", torch.rand(1, 3).repeat(2, 1))
        self.flags: torch.Tensor
        self.register_buffer("flags", torch.tensor([True, False]))
        self.passing: torch.Tensor
        self.register_buffer("passing", torch.rand(2), persistent=False)
        self.complex = nn.Parameter(torch.rand(3, dtype=torch.complex64))


class Extra(nn.Linear):
    """A module with a state that is no tensor."""

    calls = 0

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls, "names": ("a", {"b"})}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state["names"] == ("a", {"b"})
        self.calls = state["calls"]


class Computed(nn.Linear):
    """Its state dict has entries that its hooks compute."""

    def __init__(self, what: Callable[[Computed], Any]) -> None:
        super().__init__(3, 2)
        self.scale = 1.0
        self.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, state, prefix, _: state.__setitem__("scale", what(self))
        )
        self.register_load_state_dict_pre_hook(self.take)  # type: ignore[no-untyped-call]

    def take(self, module: nn.Module, state: dict[str, Any], *_: Any) -> None:
        self.scale = float(state.pop("scale"))


class Own(nn.Linear):
    """A module with words of its own, which take no arguments."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"w": self.weight.detach(), "b": self.bias.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        with torch.no_grad():
            self.weight.copy_(state["w"])
            self.bias.copy_(state["b"])


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    return model


def shared() -> nn.Module:
    """One module at two places, with a buffer and an extra state."""
    inner = nn.Sequential(nn.BatchNorm1d(4), Extra(4, 4))
    return nn.ModuleDict({"a": inner, "b": inner})


def weight_normed() -> nn.Module:
    return nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "odd": Odd,
    "tied": tied,
    "shared": shared,
    "extra": lambda: Extra(2, 2),
    "weight-norm": weight_normed,
    "computed-tensor": lambda: Computed(lambda module: torch.tensor(module.scale)),
    "computed-plain": lambda: Computed(lambda module: module.scale),
    "own": lambda: Own(2, 2),
    "rnn": lambda: nn.LSTM(3, 4, num_layers=2),
    "nothing": nn.Identity,
}


def registered(module: nn.Module) -> dict[str, Any]:
    """The module with an optimizer over what can be stepped."""
    floats = [p for p in module.parameters() if p.numel()]
    return {"model": module} | ({"optimizer": torch.optim.SGD(floats, lr=0.1)} if floats else {})


def shaken(module: nn.Module, by: float) -> None:
    """Change everything there is, in place."""
    with torch.no_grad():
        for tensor in {id(t): t for t in (*module.parameters(), *module.buffers())}.values():
            tensor.logical_not_() if tensor.dtype == torch.bool else tensor.add_(int(by))
    for inner in module.modules():
        if isinstance(inner, Extra):
            inner.calls += int(by)
        if isinstance(inner, Computed):
            inner.scale += by


@pytest.mark.parametrize("kind", MODULES)
def test_every_module_comes_back(kind: str, folder: Path) -> None:
    """Into fresh objects, in their own layout, tied as they were; the very same tensor objects."""
    seed()
    module = MODULES[kind]()
    shaken(module, 3)
    expected = bits({"model": module}, rng=False)
    with guarded(folder, registered(module)) as guard:
        guard.restore()
        guard.save()
        assert different(bits({"model": module}, rng=False), expected) == []
    seed(1)
    fresh = MODULES[kind]()
    before = {name: (id(t), t.stride()) for name, t in (*fresh.named_parameters(), *fresh.named_buffers())}
    with guarded(folder, registered(fresh)) as guard:
        assert guard.restore() == 0
    assert different(bits({"model": fresh}, rng=False), expected) == []
    after = {name: (id(t), t.stride()) for name, t in (*fresh.named_parameters(), *fresh.named_buffers())}
    assert after == before


def test_only_a_views_own_bytes_are_written(folder: Path) -> None:
    """A slice of a large storage costs what it shows."""
    module = Odd()
    with guarded(folder, registered(module)) as guard:
        guard.restore()
        saved = guard.save()
    assert saved.nbytes < 20_000


def test_tied_weights_are_written_once(folder: Path) -> None:
    """Two names, one tensor."""
    with guarded(folder, registered(tied())) as guard:
        guard.restore()
        guard.save()
    whole = find_whole(FileStore(folder), "run")
    assert whole is not None
    assert [name for name in whole.tensors if name.startswith("model/")] == ["model/0.weight"]


def test_a_buffer_that_is_put_anew_is_followed(folder: Path) -> None:
    """Of a module at two places too: what hangs there now is what is saved."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: torch.Tensor
            self.register_buffer("count", torch.zeros(2))

    def make() -> tuple[Counter, dict[str, Any]]:
        inner = Counter()
        model = nn.ModuleDict({"a": inner, "b": inner, "c": nn.Linear(1, 1)})
        return inner, registered(model)

    inner, values = make()
    with guarded(folder, values) as guard:
        guard.restore()
        for number in range(6):
            inner.count = inner.count + 1
            if number == 4:
                inner.count.data = torch.full((2,), 40.0)
            guard.step()
        guard.save()
    fresh, values = make()
    with guarded(folder, values) as guard:
        assert guard.restore() == 6
    assert fresh.count.tolist() == [41.0, 41.0]


def test_a_model_that_changes_its_dtype_in_the_middle_is_followed(folder: Path) -> None:
    """`.to()` moves every parameter's storage: saves after it have the new one."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(5))
        job.values["model"].double()
        expected = bits(job.values)
        assert guard.save().step == 5
    fresh = small()
    fresh.values["model"].double()
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 5
        assert different(bits(fresh.values), expected) == []
    fresh = small()
    before = bits(fresh.values)
    with (
        guarded(folder, fresh.values) as guard,
        pytest.raises(StateError, match=r"float32 here and .*float64"),
    ):
        guard.restore()
    assert different(bits(fresh.values), before) == []


def compiled(model: nn.Module) -> nn.Module:
    wrapped = torch.compile(model, backend="eager")
    assert isinstance(wrapped, nn.Module)
    return wrapped


@pytest.mark.parametrize("outer", [compiled, lambda model: model], ids=["compiled", "plain"])
@pytest.mark.parametrize("inner", [compiled, lambda model: model], ids=["compiled", "plain"])
def test_a_wrapper_that_only_renames_is_looked_through(outer: Any, inner: Any, folder: Path) -> None:
    """A checkpoint of a compiled model restores into a plain one, and the other way round."""
    job = small()
    job.values["model"] = outer(job.values["model"])
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        guard.save()
    fresh = small()
    fresh.values["model"] = inner(fresh.values["model"])
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 1
    assert different(fresh_bits(fresh), trajectory(small, 1)[1]) == []


def fresh_bits(job: Job) -> dict[str, int]:
    model = job.values["model"]
    return bits({**job.values, "model": getattr(model, "_orig_mod", model)})


def test_a_distributed_wrapper_is_looked_through(folder: Path) -> None:
    """DistributedDataParallel's "module." is in no name."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        job = small()
        job.values["model"] = nn.parallel.DistributedDataParallel(job.values["model"])
        with guarded(folder, job.values) as guard:
            guard.restore()
            step_on(guard, job, 0)
            guard.save()
    finally:
        torch.distributed.destroy_process_group()
    fresh = small()
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 1
    assert different(bits(fresh.values), trajectory(small, 1)[1]) == []


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda: nn.LazyLinear(3), "not initialized yet"),
        (lambda: nn.Linear(2, 2, device="meta"), "meta device"),
        (lambda: _with_buffer(torch.eye(3).to_sparse()), "sparse_coo"),
        (lambda: _with_buffer(torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.qint8)), "qint8"),
    ],
    ids=["lazy", "meta", "sparse", "quantized"],
)
@pytest.mark.filterwarnings("ignore")  # torch announces the end of its quantized tensors
def test_a_module_that_cannot_be_saved_is_refused_by_name(
    module: Callable[[], nn.Module], said: str, folder: Path
) -> None:
    """At register, in one line, and nothing is claimed in the store."""
    with pytest.raises(StateError) as refused, guarded(folder, {"model": module()}):
        pass
    assert said in str(refused.value)
    assert "model" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(folder.iterdir()) == []


def _with_buffer(tensor: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("odd", tensor)
    return module


def test_a_buffer_that_goes_away_is_noticed(folder: Path) -> None:
    """It cannot be put back where nothing hangs: said at the boundary, not at the restore."""
    module = _with_buffer(torch.zeros(3))
    with guarded(folder, {"model": module}) as guard:
        guard.restore()
        setattr(module, "odd", None)  # noqa: B010 - as a script does it
        with pytest.raises(StateError, match=r"model\.odd was a tensor"):
            guard.save()


# --- masks and observers --------------------------------------------------------------------------------------


def pruned(number: int, model: nn.Sequential) -> None:
    """Prune more, twice."""
    if number in (1, 3):
        prune.l1_unstructured(model[0], "weight", 0.2, importance_scores=model[0].weight_orig)


MASKS_AND_OBSERVERS: dict[str, Callable[[], nn.Module]] = {
    "mask": lambda: prune.l1_unstructured(nn.Linear(6, 6), "weight", 0.1),
    "MinMaxObserver": quantization.MinMaxObserver,
    "HistogramObserver": quantization.HistogramObserver,
    "FakeQuantize": quantization.FakeQuantize,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MASKS_AND_OBSERVERS)
def test_masks_and_observers_come_back(kind: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pruning that goes on, and ranges that forward collects, are in buffers."""

    def make() -> Job:
        seed()
        special = MASKS_AND_OBSERVERS[kind]()
        model = nn.Sequential(special if kind == "mask" else nn.Linear(6, 6), nn.Tanh())
        if kind != "mask":
            model.append(special)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(number: int) -> None:
            if kind == "mask":
                pruned(number, model)
            optimizer.zero_grad()
            model(torch.randn(5, 6) * (number + 1)).square().mean().backward()
            optimizer.step()

        return Job({"model": model, "optimizer": optimizer}, step)

    saved_and_resumed(make, folder)
    assert said(caplog) == []
