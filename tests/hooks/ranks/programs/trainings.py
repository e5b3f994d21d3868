"""Ways to make a step: one loss and one optimizer step, or what else there is in real loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

#: Told at which place the training thread is.
At = Callable[[str], None]


class Plain:
    """One backward, then each optimizer in turn."""

    def __init__(self, model: nn.Module, halves: Sequence[list[nn.Parameter]], rank: int, at: At) -> None:
        self.model, self.rank, self._at = model, rank, at
        self.optimizers = [self.optimizer(half) for half in halves]
        self.state: dict[str, Any] = {f"optimizer{n}": each for n, each in enumerate(self.optimizers)}

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01)

    def step(self, data: torch.Tensor, number: int) -> float:
        """Returns the loss."""
        loss = self.loss(data)
        loss.backward()
        for each in self.turns():
            each.step()
            each.zero_grad()
        return loss.item()

    def extra(self) -> str:
        """What else is the same after a restore."""
        return ""

    def loss(self, data: torch.Tensor) -> torch.Tensor:
        made = self.model(data)
        made.register_hook(lambda _: self._at("backward"))
        loss: torch.Tensor = made.square().mean()
        return loss

    def turns(self) -> Iterator[torch.optim.Optimizer]:
        for number, each in enumerate(self.optimizers):
            if number:
                self._at("between")
            yield each


class Noted(Plain):
    """Each rank keeps a dict of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.notes = {"whose": self.rank, "drawn": 0}
        self.state["notes"] = self.notes

    def step(self, data: torch.Tensor, number: int) -> float:
        self.notes["drawn"] += 1
        return super().step(data, number)


class Scaled(Plain):
    """A `GradScaler`, whose gradients overflow at every third step: it skips the optimizers, and that is a step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.state["scaler"] = self.scaler

    def step(self, data: torch.Tensor, number: int) -> float:
        loss = self.loss(data)
        self.scaler.scale(loss * (float("inf") if number % 3 == 1 else 1.0)).backward()
        for each in self.turns():
            self.scaler.step(each)
            each.zero_grad()
        self.scaler.update()
        return loss.item()

    def extra(self) -> str:
        return str(self.scaler.state_dict())


class Accumulated(Plain):
    """The gradients of two parts of the data, then one step."""

    def step(self, data: torch.Tensor, number: int) -> float:
        losses = []
        for part in data.chunk(2):
            losses.append(self.loss(part) / 2)
            losses[-1].backward()
        for each in self.turns():
            each.step()
            each.zero_grad()
        return sum(loss.item() for loss in losses)


class Closed(Plain):
    """The optimizer calls forward and backward by itself, several times."""

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)

    def step(self, data: torch.Tensor, number: int) -> float:
        def closure() -> float:
            for each in self.optimizers:
                each.zero_grad()
            loss = self.loss(data)
            loss.backward()
            return loss.item()

        return sum(float(each.step(closure)) for each in self.turns())


class Averaged:
    """Weights averaged by hand, as torch's optimizers do not: no hook of torch's reaches its step."""

    def __init__(self, model: nn.Module) -> None:
        self.param_groups = [{"params": list(model.parameters()), "decay": 0.9}]
        self.count = 0.0

    def step(self) -> None:
        self.count = self.count * 0.9 + 1.0

    def state_dict(self) -> dict[str, float]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.count = state["count"]


class Counted(Averaged):
    """The same number, of no optimizer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        del self.param_groups


class SomeAtBoundaries(Plain):
    """Rank 1 can be saved at its boundaries only."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.average = (Averaged if self.rank == 1 else Counted)(self.model)
        self.state["average"] = self.average

    def step(self, data: torch.Tensor, number: int) -> float:
        loss = super().step(data, number)
        self.average.step()
        return loss

    def extra(self) -> str:
        return str(self.average.state_dict())


class Ahead(Plain):
    """A stage of a pipeline in which nothing comes back: each has a loss of its own, and whoever is first may be far ahead."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sent: list[Any] = []

    def step(self, data: torch.Tensor, number: int) -> float:
        loss = self.output(data).square().mean()
        loss.backward()
        self.change()
        return loss.item()

    def output(self, data: torch.Tensor) -> torch.Tensor:
        """Of this stage, which the next one gets."""
        if self.rank > 0:
            dist.recv(data := torch.empty_like(data), self.rank - 1)
        made: torch.Tensor = self.model(data.requires_grad_())
        made.register_hook(lambda _: self._at("backward"))
        self.data = data
        if self.rank < dist.get_world_size() - 1:
            self._sent.append((dist.isend(held := made.detach().clone(), self.rank + 1), held))
        return made

    def change(self) -> None:
        for each in self.turns():
            each.step()
            each.zero_grad()


class BackAndForth(Ahead):
    """A stage of a pipeline with one loss, at its end. The last stage has its gradients first, and is a step ahead of who
    waits for them."""

    def step(self, data: torch.Tensor, number: int) -> float:
        made = self.output(data)
        if self.rank < dist.get_world_size() - 1:
            dist.recv(gradient := torch.empty_like(made), self.rank + 1)
            made.backward(gradient)
        else:
            made.square().mean().backward()
        if self.rank > 0:
            assert self.data.grad is not None
            self._sent.append((dist.isend(self.data.grad, self.rank - 1), self.data.grad))
        self.change()
        return made.sum().item()


class Changing(Plain):
    """In mid-run one parameter is frozen, and another one joins those that are trained."""

    #: Steps at which that is done.
    FREEZES, JOINS = 6, 7

    def __init__(self, model: nn.Module, halves: Sequence[list[nn.Parameter]], rank: int, at: At) -> None:
        (whole,) = halves
        self._frozen, self._joins = whole[1], whole[-1]
        super().__init__(model, [whole[:-1]], rank, at)

    def step(self, data: torch.Tensor, number: int) -> float:
        if number == self.FREEZES:
            self._frozen.requires_grad_(False)
        if number == self.JOINS:
            self.optimizers[0].add_param_group({"params": [self._joins], "lr": 0.02})
            self._at("joined")
        loss = super().step(data, number)
        self.model.zero_grad()  # who has not joined has gradients too
        return loss


class Changed(Changing):
    """What is begun again behind these steps is made as it was then."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._frozen.requires_grad_(False)
        self.optimizers[0].add_param_group({"params": [self._joins], "lr": 0.02})


TRAININGS: dict[str, type[Plain]] = {
    "plain": Plain,
    "noted": Noted,
    "scaled": Scaled,
    "accumulated": Accumulated,
    "closed": Closed,
    "some at boundaries": SomeAtBoundaries,
    "ahead": Ahead,
    "back and forth": BackAndForth,
    "changing": Changing,
    "changed": Changed,
}
