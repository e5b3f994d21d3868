"""Optimizers that are not torch's own, each in the manner of one that is in use: where they keep what they keep is the point.

They are small and honest: each trains, and trains otherwise if what it keeps is lost.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

Params = Iterable[nn.Parameter]


class Plain(Optimizer):
    """SGD with momentum 0.9, whose momentum `self.buffer` finds."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def buffer(self, param: torch.Tensor) -> torch.Tensor:
        """The momentum of a parameter."""
        state = self.state[param]
        if not state:
            state["momentum"] = torch.zeros_like(param)
        held: torch.Tensor = state["momentum"]
        return held

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; the closure is not called."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.sub_(self.buffer(param).mul_(0.9).add_(param.grad), alpha=group["lr"])


# --- all that they keep is where torch looks for it -----------------------------------------------------------


class ScheduleFree(Optimizer):
    """Averages instead of a schedule: weights are at y or at x, as a flag of the group says."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "weight_sum": 0.0, "train_mode": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Moves z, and y between z and x."""
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += group["k"] ** 0.5
            share = group["k"] ** 0.5 / group["weight_sum"]
            for param in group["params"]:
                if param.grad is not None:
                    z = self.state[param].setdefault("z", param.clone())
                    param.lerp_(z, share).sub_(param.grad, alpha=group["lr"] * (0.9 * (1 - share)))
                    z.sub_(param.grad, alpha=group["lr"])


class EightBit(Optimizer):
    """Momentum in blocks of 64 numbers of 8 bits, each block with its largest value."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def table(self) -> torch.Tensor:
        """The values of the 256 codes."""
        return torch.linspace(-1, 1, 256)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Unpacks, steps, packs."""
        table = self.table()
        for group in self.param_groups:
            for param in (p for p in group["params"] if p.grad is not None):
                state, padding = self.state[param], -param.numel() % 64
                if state:
                    blocks = table[state["codes"].long()] * state["largest"][:, None]
                else:
                    blocks = torch.zeros(param.numel() + padding).reshape(-1, 64)
                blocks = blocks * 0.9 + nn.functional.pad(param.grad.reshape(-1), (0, padding)).reshape(
                    -1, 64
                )
                state["largest"] = blocks.abs().amax(1).clamp_min(1e-12)
                state["codes"] = (
                    torch.bucketize(blocks / state["largest"][:, None], table).clamp_max(255).byte()
                )
                param.sub_(blocks.reshape(-1)[: param.numel()].reshape(param.shape), alpha=group["lr"])


class Shampoo(Optimizer):
    """A preconditioner for each dimension, whose root is taken every second step."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Preconditions each dimension."""
        for group in self.param_groups:
            for param in (p for p in group["params"] if p.grad is not None):
                state = self.state[param]
                if not state:
                    state["step"] = 0
                    state["factors"] = [torch.eye(n) * 1e-3 for n in param.shape]
                    state["roots"] = [torch.eye(n) for n in param.shape]
                grad = param.grad
                for dim, factor in enumerate(state["factors"]):
                    flat = param.grad.movedim(dim, 0).flatten(1) if param.dim() > 1 else param.grad[:, None]
                    factor.add_(flat @ flat.T)
                    if state["step"] % 2 == 0:
                        values, vectors = torch.linalg.eigh(factor)
                        state["roots"][dim] = (
                            vectors @ torch.diag(values.clamp_min(1e-6) ** -0.25) @ vectors.T
                        )
                    grad = torch.tensordot(state["roots"][dim], grad.movedim(dim, 0), 1).movedim(0, dim)
                state["step"] += 1
                param.sub_(grad, alpha=group["lr"])


class Masters(Optimizer):
    """Steps a float32 copy of each bfloat16 weight, kept in its state."""

    def __init__(self, params: Params, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["master"] = param.detach().float()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Steps the masters and rounds them into the weights."""
        for group in self.param_groups:
            for param in (p for p in group["params"] if p.grad is not None):
                param.copy_(self.state[param]["master"].sub_(param.grad.float(), alpha=group["lr"]))


class Flat(Plain):
    """Has its parameters in one piece of memory, and holds that."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        held = [p for group in self.param_groups for p in group["params"]]
        self.flat = torch.cat([p.detach().reshape(-1) for p in held])
        at = 0
        for param in held:
            param.data = self.flat[at : at + param.numel()].view(param.shape)
            at += param.numel()


class Scratch(Plain):
    """Keeps an overflow flag as fused kernels do, a gradient, and a compiled function's like."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32)
        self.last_gradients: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> Any:
        """Remembers the gradients until they are set to none."""
        self.last_gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        super().step(closure)


class Lookahead(Optimizer):
    """Around another one, in the manner of the first published: never calls `Optimizer.__init__`, and says its own state."""

    def __init__(self, optimizer: Optimizer, k: int = 2) -> None:
        self.optimizer, self.k = optimizer, k
        self.param_groups = optimizer.param_groups
        self.state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Steps the fast weights; every k-th time goes half the way."""
        self.optimizer.step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                slow = self.state[param].setdefault("slow", param.clone())
                if group["counter"] == 0:
                    param.copy_(slow.lerp_(param, 0.5))
            group["counter"] = (group["counter"] + 1) % self.k

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner one's."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Fast and slow."""
        numbers = {p: i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        slow = {numbers[p]: dict(state) for p, state in self.state.items()}
        return {"fast": self.optimizer.state_dict(), "slow": slow}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into both."""
        params = [p for group in self.param_groups for p in group["params"]]
        self.optimizer.load_state_dict(state_dict["fast"])
        self.param_groups = self.optimizer.param_groups
        self.state = defaultdict(dict, {params[i]: state for i, state in state_dict["slow"].items()})


# --- what they keep is where torch does not look --------------------------------------------------------------


class SlowWeights(Plain):
    """Lookahead with its slow weights in an attribute."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.slow = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Goes half the way each time."""
        super().step(closure)
        for param, slow in self.slow.items():
            param.copy_(slow.lerp_(param, 0.5))


class Attribute(Plain):
    """One tensor in an attribute: the mean of the gradients' norms."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.norm = torch.ones(1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Steps by the gradient over its usual norm."""
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.norm.lerp_(torch.stack([g.norm() for g in grads]).sum(), 0.1)
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.sub_(param.grad / self.norm, alpha=group["lr"])


class Closed(Plain):
    """Its momentum is in the cells of a function."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        held = {id(p): torch.zeros_like(p) for group in self.param_groups for p in group["params"]}

        def find(param: torch.Tensor) -> torch.Tensor:
            return held[id(param)]

        self.find: Callable[[torch.Tensor], torch.Tensor] = find

    def buffer(self, param: torch.Tensor) -> torch.Tensor:
        return self.find(param)


class OnParameters(Plain):
    """Its momentum hangs on the parameters."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            for param in group["params"]:
                param.momentum = torch.zeros_like(param)

    def buffer(self, param: torch.Tensor) -> torch.Tensor:
        held: torch.Tensor = param.momentum  # type: ignore[attr-defined]
        return held


class MastersBeside(Plain):
    """Steps float32 copies that are in a list beside its state."""

    def __init__(self, params: Params, lr: float = 0.05) -> None:
        super().__init__(params, lr)
        self.masters = [p.detach().float() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Steps the masters and rounds them into the weights."""
        held = [(p, group["lr"]) for group in self.param_groups for p in group["params"]]
        for (param, lr), master in zip(held, self.masters, strict=True):
            if param.grad is not None:
                param.copy_(master.sub_(self.buffer(param).mul_(0.9).add_(param.grad), alpha=lr))


class Averaging(Plain):
    """An EMA of the whole model inside, which is what its user evaluates."""

    def __init__(self, params: Params, model: nn.Module, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.model, self.ema = model, copy.deepcopy(model)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Pulls the weights to their mean, and the mean to the weights."""
        super().step(closure)
        for mean, param in zip(self.ema.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(param, 0.1)
            param.lerp_(mean, 0.1)


class Sharpness(Optimizer):
    """SAM: climbs by the gradient, and steps an optimizer of its own from there."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """The closure is not called: the climb is a push by the gradient's sign."""
        for group in self.param_groups:
            for param in (p for p in group["params"] if p.grad is not None):
                self.state[param]["old"] = param.clone()
                param.add_(param.grad.sign(), alpha=1e-3)
        for param, state in self.state.items():
            param.copy_(state["old"])
        self.base_optimizer.step()


class Projected(Plain):
    """GaLore: an object in its state that holds a tensor, from the first step on."""

    class Projector:
        """Projects."""

        def __init__(self, matrix: torch.Tensor) -> None:
            self.matrix = matrix

    def buffer(self, param: torch.Tensor) -> torch.Tensor:
        state = self.state[param]
        state.setdefault("projector", self.Projector(torch.rand(param.shape)))
        held: torch.Tensor = state.setdefault("momentum", torch.zeros_like(param))
        return held.mul_(state["projector"].matrix)


class LateAttribute(Plain):
    """Makes a tensor beside its state at the first step."""

    mean: torch.Tensor | None = None

    def step(self, closure: Any = None) -> Any:
        """Keeps the mean of the first parameter."""
        super().step(closure)
        first = self.param_groups[0]["params"][0].detach()
        self.mean = first.clone() if self.mean is None else self.mean.lerp(first, 0.5)


class Counting(Plain):
    """Steps half as far every third time, by a count in an attribute."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        """Counts."""
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.05 if self.count % 3 == 0 else 0.1
        super().step(closure)


class Emptied:
    """ZeRO-3: what it steps are float32 pieces of its own, and the groups have them for the time of a step only.

    Args:
        optimizer: torch's, whose groups it empties.
        begun: make the state at once, as DeepSpeed does, else with the first step.
    """

    def __init__(self, optimizer: Optimizer, begun: bool) -> None:
        self.optimizer = optimizer
        self.weights = [list(group["params"]) for group in optimizer.param_groups]
        self.pieces = [torch.cat([p.detach().reshape(-1) for p in group]) for group in self.weights]
        for group in optimizer.param_groups:
            group["params"] = []
        if begun:
            self.run([torch.zeros_like(piece) for piece in self.pieces])

    def run(self, grads: list[torch.Tensor]) -> None:
        """One step of the inner one."""
        for group, piece, grad in zip(self.optimizer.param_groups, self.pieces, grads, strict=True):
            piece.grad = grad
            group["params"] = [piece]
            self.optimizer.step()
            group["params"] = []
            piece.grad = None

    def step(self) -> None:
        """Gathers the gradients, steps, and gives the weights back."""
        self.run([torch.cat([p.grad.reshape(-1) for p in group]) for group in self.weights])
        with torch.no_grad():
            for group, piece in zip(self.weights, self.pieces, strict=True):
                at = 0
                for param in group:
                    param.copy_(piece[at : at + param.numel()].view(param.shape))
                    at += param.numel()


# --- wrappers, as frameworks write them -----------------------------------------------------------------------


class Accelerated(Optimizer):
    """Accelerate's: an `Optimizer` that never was initialized, whose state and groups are the inner one's."""

    def __init__(self, optimizer: Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        self.optimizer, self.scaler = optimizer, scaler
        self.gradient_state = {
            "sync_gradients": True,
            "loaders": [torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3)))],
        }
        self._is_overflow = False

    @property
    def state(self) -> Any:
        """The inner one's."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> Any:
        """The inner one's."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, param_groups: Any) -> None:
        self.optimizer.param_groups = param_groups

    def state_dict(self) -> dict[str, Any]:
        """The inner one's."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the inner one."""
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner one's, where gradients are synchronized."""
        if self.gradient_state["sync_gradients"]:
            self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        """The inner one's, where gradients are synchronized."""
        if self.gradient_state["sync_gradients"] and self.scaler is not None:
            self.scaler.step(self.optimizer, closure)
            self.scaler.update()
        elif self.gradient_state["sync_gradients"]:
            self.optimizer.step(closure)


class Bare(Accelerated):
    """One that forgot to give its state."""

    state_dict = Optimizer.state_dict


class WithMean(Accelerated):
    """One that keeps a mean of its own, and says so."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.mean = torch.zeros(())

    def state_dict(self) -> dict[str, Any]:
        """With the mean."""
        return {"inner": self.optimizer.state_dict(), "mean": self.mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Both."""
        self.optimizer.load_state_dict(state_dict["inner"])
        self.mean = state_dict["mean"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Pulls all weights to the mean after the step."""
        super().step(closure)
        params = [p for group in self.param_groups for p in group["params"]]
        self.mean = self.mean * 0.9 + torch.stack([p.mean() for p in params]).mean() * 0.1
        for param in params:
            param.lerp_(self.mean, 0.01)


class FabricOptimizer:
    """Lightning Fabric's: no `Optimizer`, until its class is made one of the inner one's kind."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._callbacks: list[Any] = []
        self.__class__ = type("Fabric" + type(optimizer).__name__, (self.__class__, type(optimizer)), {})

    @property
    def optimizer(self) -> Optimizer:
        """The inner one."""
        return self._optimizer

    def state_dict(self) -> dict[str, Any]:
        """The inner one's."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the inner one."""
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        """The inner one's."""
        return self.optimizer.step(closure)

    def __getattr__(self, item: str) -> Any:
        return getattr(self._optimizer, item)


class FabricModule(nn.Module):
    """Lightning Fabric's: gives the state of the module inside as its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward_module, self._original_module = module, module

    @property
    def module(self) -> nn.Module:
        """The module inside."""
        return self._original_module

    def forward(self, x: torch.Tensor) -> Any:
        """The module's inside."""
        return self._forward_module(x)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's inside, under its names."""
        return self._original_module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Into the module inside."""
        return self._original_module.load_state_dict(state_dict, strict)


class Container(Optimizer):
    """torchtitan's: several, initialized as an optimizer of all their parameters, which it never steps itself."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.optimizers = optimizers
        params = [p for each in optimizers for group in each.param_groups for p in group["params"]]
        Optimizer.__init__(self, params, {})

    def step(self, closure: Any = None) -> Any:
        """Each in turn."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of each."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Makes state by a step of nothing where there is none, as torchtitan's does: guarding must not ask for it."""
        for optimizer in self.optimizers:
            if not optimizer.state:
                held = [p for group in optimizer.param_groups for p in group["params"]]
                for param in held:
                    param.grad = torch.zeros_like(param)
                optimizer.step()
                optimizer.zero_grad()
        return {str(number): each.state_dict() for number, each in enumerate(self.optimizers)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into each."""
        for number, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(state_dict[str(number)])


class _Distributed(Optimizer):
    """Horovod's, of which a class is made that derives from the optimizer's own."""

    def __init__(self, params: Any) -> None:
        super(self.__class__, self).__init__(params)  # type: ignore[call-arg]
        held = [p for group in self.param_groups for p in group["params"]]
        self._parameter_names = {p: f"parameter.{number}" for number, p in enumerate(held)}
        self._handles: dict[torch.Tensor, Any] = {}
        self._grad_accs: list[Any] = []
        self.loads = 0
        for param in held:
            expanded = param.expand_as(param).grad_fn
            assert expanded is not None
            self._grad_accs.append(expanded.next_functions[0][0])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Forgets what is under way."""
        self._handles, self.loads = {}, self.loads + 1
        super(self.__class__, self).load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        """Waits for what is under way."""
        self._handles.clear()
        return super(self.__class__, self).step(closure)


def distributed(optimizer: Optimizer) -> Any:
    """Horovod's `DistributedOptimizer`."""
    cls = type(type(optimizer).__name__, (type(optimizer),), dict(_Distributed.__dict__))
    return cls(optimizer.param_groups)
