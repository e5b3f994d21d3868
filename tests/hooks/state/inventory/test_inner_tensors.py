"""Tensors whose bytes are in inner tensors, as quantized weights and 8-bit moments are: saved whole, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.recorder.checksums import of_tensor
from spotguard.hooks.state.inventory.inner_tensors import check_outlines, inner, outlined, whole
from spotguard.providers.errors import CheckpointError, StateError
from spotguard.providers.stores.file import FileStore
from tests.fakes.training import Job, different, finished, guarded, restored, seed, step_on

pytestmark = pytest.mark.torch


class Codes(torch.Tensor):
    """A tensor of 8 bits with one scale for each row."""

    codes: torch.Tensor
    scale: torch.Tensor
    kind: Any

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, kind: Any = "rows") -> Codes:
        made: Codes = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scale, made.kind = codes, scale, kind
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], [self.kind]

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, torch.Tensor], context: Any, *_: Any) -> Codes:
        return cls(parts["codes"], parts["scale"], *context)

    @classmethod
    def of(cls, tensor: torch.Tensor, kind: Any = "rows") -> Codes:
        scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        return cls((tensor / scale).round().to(torch.int8), scale, kind)

    def plain(self) -> torch.Tensor:
        return self.codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale, args[0].kind)
        if func is torch.ops.aten.copy_.default:
            new = cls.of(args[1].plain() if isinstance(args[1], Codes) else args[1])
            args[0].codes.copy_(new.codes)
            args[0].scale.copy_(new.scale)
            return args[0]
        out = func(
            *tree_map(lambda each: each.plain() if isinstance(each, Codes) else each, args), **kwargs or {}
        )
        return out


class Nested(Codes):
    """Its scale is of 8 bits, too."""


class Momentum(torch.optim.Optimizer):
    """SGD whose momentum has 8 bits."""

    def __init__(self, params: Any, make: Callable[[torch.Tensor], Any] = Codes.of) -> None:
        self.make = make
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["step"], state["buffer"] = 0, self.make(torch.zeros_like(param))
                state["step"] += 1
                new = state["buffer"] * 0.9 + param.grad
                state["buffer"].copy_(new)
                param.copy_(param - group["lr"] * new)


class Lora(nn.Module):
    """A frozen weight of 8 bits, and two trained ones."""

    def __init__(self, kind: Any = "rows", frozen: bool = True) -> None:
        super().__init__()
        self.base: Any = nn.Parameter(Codes.of(torch.randn(8, 8), kind), requires_grad=not frozen)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.base + self.up(self.down(x))  # type: ignore[no-any-return]


def raw(value: Any) -> Any:
    if isinstance(value, Codes):
        return {"codes": raw(value.codes), "scale": raw(value.scale), "kind": value.kind}
    return {key: raw(each) for key, each in value.items()} if isinstance(value, dict) else value


class Raw:
    """The bytes of a model and an optimizer, for a comparison."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._of = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = self._of
        state = {name: raw(optimizer.state.get(p, {})) for name, p in model.named_parameters()}
        return {"model": {name: raw(p) for name, p in model.named_parameters()}, "state": state}


class QuantizedJob(Job):
    """A job that is compared by the bytes of its inner tensors."""

    def bits(self) -> dict[str, int]:
        from tests.fakes.training import bits

        return bits({"raw": Raw(self.values["model"], self.values["optimizer"])})


def job(model: Callable[[], nn.Module], optimizer: Callable[[Any], torch.optim.Optimizer]) -> Job:
    seed()
    net = model()
    made = QuantizedJob(
        {"model": net, "optimizer": optimizer([p for p in net.parameters() if p.requires_grad])}
    )

    def step(number: int) -> None:
        made.values["optimizer"].zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        made.values["optimizer"].step()

    made.step = step
    return made


def nested(tensor: torch.Tensor) -> Codes:
    codes = Codes.of(tensor)
    return Nested(codes.codes, Codes.of(codes.scale))


JOBS: dict[str, Callable[[], Job]] = {
    "moments": lambda: job(lambda: nn.Linear(8, 8, bias=False), Momentum),
    "moments of a transposed weight": lambda: job(lambda: transposed(), Momentum),
    "nested moments": lambda: job(lambda: nn.Linear(8, 8, bias=False), lambda p: Momentum(p, nested)),
    "a frozen weight": lambda: job(Lora, torch.optim.AdamW),
    "a trained weight": lambda: job(
        lambda: Lora(frozen=False), lambda p: Momentum(p, lambda t: torch.zeros(t.shape))
    ),
    "tied": lambda: job(tied, torch.optim.AdamW),
}


def transposed() -> nn.Module:
    model = nn.Linear(8, 8, bias=False)
    model.weight = nn.Parameter(torch.randn(8, 8).mT)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(Lora(), Lora())
    model[1].base = model[0].base
    return model


@pytest.mark.parametrize("kind", JOBS)
def test_training_goes_on_bit_for_bit(kind: str, folder: Path) -> None:
    """Saved before the first step and after the third, in the same process and in another."""
    make, expected = JOBS[kind], []
    plain = make()
    for number in range(5):
        expected.append(plain.bits())
        plain.step(number)
    expected.append(plain.bits())
    first = make()
    with guarded(folder, first.values) as guard:
        guard.restore()
        guard.save()
        step_on(guard, first, 0, 1, 2)
        assert different(first.bits(), expected[3]) == [], "guarding changed something"
        assert guard._state.boundary_only == ""
        guard.save()
        step_on(guard, first, 3)
        assert guard.restore(step=3) == 3
        assert different(first.bits(), expected[3]) == []
    step, state = restored(folder, make)
    assert (step, different(state, expected[3])) == (3, [])
    assert different(finished(folder, make, 5)[1], expected[5]) == []


def test_the_inner_tensors_have_names(folder: Path) -> None:
    made = job(Lora, Momentum)
    with guarded(folder, made.values) as guard:
        guard.restore()
        step_on(guard, made, 0)
        names = {each.name for each in guard._state.collect().state_tensors}
    assert {"model/base.codes", "model/base.scale"} < names
    assert {f"optimizer/state/model/down.weight/buffer.{path}" for path in ("codes", "scale")} < names


def test_a_weight_that_is_replaced_is_followed(folder: Path) -> None:
    """By another tensor, or by swapping what it holds: a save has the new bytes."""
    made = job(Lora, torch.optim.AdamW)
    model = made.values["model"]
    with guarded(folder, made.values) as guard:
        guard.restore()
        for replace in (
            lambda new: setattr(model, "base", nn.Parameter(new, requires_grad=False)),
            lambda new: torch.utils.swap_tensors(model.base, nn.Parameter(new, requires_grad=False)),
        ):
            replace(Codes.of(torch.randn(8, 8)))
            step_on(guard, made, 0)
            saved = guard.save()
            expected = model.base.codes.clone()
            model.base.codes.zero_()
            guard.restore(step=saved.step)
            assert torch.equal(model.base.codes, expected)


def test_another_quantization_is_refused_at_restore(folder: Path) -> None:
    """By name, with both texts, and before a byte is written."""
    with guarded(folder, {"model": Lora("rows")}) as guard:
        guard.restore()
        guard.save()
    model = Lora("columns")
    before = model.base.codes.clone()
    with (
        guarded(folder, {"model": model}) as guard,
        pytest.raises(
            StateError, match=r"model\.base is a .*Codes \['columns'\] here and a .*Codes \['rows'\]"
        ),
    ):
        guard.restore()
    assert torch.equal(model.base.codes, before)


def test_a_context_without_a_text_of_its_own_is_refused(folder: Path) -> None:
    with (
        pytest.raises(StateError, match=r"model\.base is a .*Codes whose context holds an object"),
        guarded(folder, {"model": Lora(object())}),
    ):
        pass
    assert find_whole(FileStore(folder), "run") is None


def test_moments_whose_context_cannot_be_saved_are_refused_by_name(folder: Path) -> None:
    made = job(lambda: nn.Linear(8, 8, bias=False), lambda p: Momentum(p, lambda t: Codes.of(t, object())))
    with guarded(folder, made.values) as guard:
        guard.restore()
        step_on(guard, made, 0)
        with pytest.raises(
            StateError, match=r"optimizer\.state.*context.* is an object, which cannot be saved"
        ):
            guard.save()


def test_a_class_that_is_not_loaded_is_named(folder: Path) -> None:
    """The checkpoint names it, and nothing is imported for it."""
    tree = outlined({"w": Codes.of(torch.ones(2, 2))})
    tree["w"]["spotguard.outline"] = "json.decoder.JSONDecoder"
    with pytest.raises(
        StateError, match=r"holds a json\.decoder\.JSONDecoder, and this process has loaded no such"
    ):
        check_outlines("optimizer", tree)


@pytest.mark.parametrize(
    "wrong",
    [{"inner": 3}, {"inner": {"codes": 3}}, {"spotguard.outline": 5}, {"more": 1}],
    ids=["no tensors", "a number", "no name", "a field"],
)
def test_an_outline_in_another_form_is_damage(wrong: dict[str, Any]) -> None:
    tree = {"w": outlined(Codes.of(torch.ones(2, 2))) | wrong}
    with pytest.raises(CheckpointError, match="optimizer/w: a saved tensor's outline"):
        check_outlines("optimizer", tree)


def test_a_class_that_refuses_its_parts_is_named() -> None:
    outline = outlined(Codes.of(torch.ones(2, 2)))
    del outline["inner"]["scale"]
    with pytest.raises(StateError, match=r"Codes cannot be made from the checkpoint \(KeyError"):
        whole(outline)


def test_a_class_without_the_protocol_has_no_inner_tensors() -> None:
    """A plain tensor, a class without it, and one whose tensors are no attributes."""

    class Hidden(Codes):
        def __tensor_flatten__(self) -> tuple[list[str], Any]:
            return ["codes", "elsewhere"], None

    assert inner(torch.ones(2)) == inner(nn.Parameter(torch.ones(2))) == []
    assert inner(Hidden(*[torch.ones(2, 2)] * 2)) == []
    assert [each.path for each in inner(nested(torch.ones(2, 2)))] == ["codes", "scale.codes", "scale.scale"]


def test_prove_compares_the_inner_tensors() -> None:
    """A checksum of all of them: another scale alone is another tensor."""
    one = Codes.of(torch.ones(2, 2))
    assert of_tensor(one) == of_tensor(Codes.of(torch.ones(2, 2)))
    assert of_tensor(one) != of_tensor(Codes(one.codes, one.scale * 2))


class Packed(nn.Parameter):
    """A parameter with more than its bytes, as bitsandbytes' are."""


def test_a_frozen_weight_of_another_kind_is_refused_with_the_way_out(folder: Path) -> None:
    """And the way out works: the trained parameters alone."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight = Packed(torch.ones(4, 4), requires_grad=False)
    with (
        pytest.raises(StateError, match=r"Packed.*register the trained parameters instead"),
        guarded(folder, {"model": model}),
    ):
        pass
    last: Any = model[1]
    trained = nn.ParameterDict(
        {key.replace(".", "/"): p for key, p in model.named_parameters() if p.requires_grad}
    )
    optimizer = torch.optim.SGD(trained.values(), lr=0.1)
    with guarded(folder, {"trained": trained, "optimizer": optimizer}) as guard:
        guard.restore()
        before = last.weight.clone()
        guard.save()
        with torch.no_grad():
            last.weight.zero_()
        guard.restore(step=0)
    assert torch.equal(last.weight, before)


def test_an_optimizer_that_steps_copies_on_the_host_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchao's CPUOffloadOptimizer, which needs a GPU to be made."""

    class CPUOffloadOptimizer(torch.optim.Optimizer):
        def __init__(self) -> None:
            pass

    module = ModuleType("torchao.optim.cpu_offload")
    module.CPUOffloadOptimizer = CPUOffloadOptimizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    values = {"model": nn.Linear(2, 2), "optimizer": CPUOffloadOptimizer()}
    with (
        pytest.raises(StateError, match=r"optimizer is a CPUOffloadOptimizer.*SG411"),
        guarded(folder, values),
    ):
        pass
