"""Public reports of resumed runs that lost moments or averages: exact here, or said."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from tests.fakes.passes import WIDTH, Loop
from tests.fakes.public_reports import Report, Table, batch

pytestmark = [pytest.mark.torch]

reports = Table()
report = reports.report


@report("Lightning-AI/pytorch-lightning#6891", cuts=(3, 5, 8), remark="the restore adds the others")
def groups_that_training_adds(loop: Loop) -> None:
    """Groups that a callback adds are not there when the state is loaded."""
    loop.optimizer = torch.optim.AdamW(loop.model[2].parameters(), lr=0.1)
    loop.restore()
    for n in loop.turns(12):
        if n >= 4 and len(loop.optimizer.param_groups) < 2:
            loop.optimizer.add_param_group({"params": loop.model[0].parameters(), "lr": 0.01})
        loop.learn(batch())


@report("speediedan/finetuning-scheduler#30", "more than one parameter group", cuts=(8,))
def groups_added_twice(loop: Loop) -> None:
    """A resumed run adds the groups of its epoch once more."""
    loop.optimizer = torch.optim.AdamW(loop.model[2].parameters(), lr=0.1)
    loop.restore()
    added = False
    for n in loop.turns(12):
        if n >= 4 and not added:
            loop.optimizer.add_param_group({"params": loop.model[0].parameters(), "lr": 0.01})
            added = True
        loop.learn(batch())


@report("Lightning-AI/pytorch-lightning#21901", cuts=(3, 5, 8))
def layers_frozen_again(loop: Loop) -> None:
    """Layers that were thawed before the cut are frozen again, and never train."""
    loop.model[0].requires_grad_(False)
    loop.restore()
    for n in loop.turns(12):
        if n == 4:
            loop.model[0].requires_grad_(True)
        loop.learn(batch())


@report("pytorch/pytorch#192202", cuts=(3, 6, 10))
def moments_of_a_frozen_layer(loop: Loop) -> None:
    """The moments of a layer that is frozen for a while are dropped."""
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.1)
    loop.restore()
    for n in loop.turns(12):
        loop.model[0].requires_grad_(not 4 <= n < 8)
        loop.learn(batch())


@report("pytorch/torchtitan#4615")
def moments_in_fewer_bits(loop: Loop) -> None:
    """Moments in bfloat16 beside float32 weights become float32."""

    class Rounding(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for state in self.state.values():
                state["kept"] = (state["momentum_buffer"] * 0.5).bfloat16()
            for param, state in self.state.items():
                param.data.add_(state["kept"].float(), alpha=-0.01)

    loop.optimizer = Rounding(loop.model.parameters(), lr=0.01, momentum=0.9)
    loop.restore()
    for _ in loop.turns(12):
        loop.learn(batch())


@report("vllm-project/speculators#411")
def count_of_steps_in_fewer_bits(loop: Loop) -> None:
    """The count of steps is loaded in the weights' bfloat16."""
    loop.model.bfloat16()
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.1, betas=(0.9, 0.99))
    loop.restore()
    for _ in loop.turns(12):
        loop.optimizer.zero_grad()
        loop.descend((loop.model(batch().bfloat16()).float() - 1).square().mean())
        loop.step()


class Lookahead:
    """Steps an optimizer, and pulls the weights to slow ones at each third step."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.count = optimizer, 0
        self.slow = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.count += 1
        if self.count % 3 == 0:
            weights = [p for group in self.param_groups for p in group["params"]]
            for slow, weight in zip(self.slow, weights, strict=True):
                weight.copy_(slow.lerp_(weight, 0.5))


class SavedLookahead(Lookahead):
    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.slow, self.count = state["slow"], state["count"]


@report("kozistr/pytorch_optimizer#310", cuts=(2, 4, 6), remark="a save waits for the next guard.step()")
def lookahead(loop: Loop) -> None:
    """The slow weights of Lookahead are not saved."""
    loop.optimizer = SavedLookahead(loop.optimizer)
    loop.restore()
    for _ in loop.turns(12):
        loop.learn(batch())


@report("lonePatient/lookahead_pytorch#3", "give it state_dict() and load_state_dict()")
def lookahead_without_a_state_dict(loop: Loop) -> None:
    """A wrapper without a state dict cannot be saved."""
    loop.optimizer = Lookahead(loop.optimizer)
    loop.restore()


@report("mgrankin/over9000#8", "changes during training, and no checkpoint has it", cuts=(4, 10))
def inner_optimizer_alone(loop: Loop) -> None:
    """Only the optimizer inside Lookahead is saved."""
    inner = loop.optimizer
    loop.optimizer = Lookahead(inner)
    loop.restore(optimizer=inner)
    for _ in loop.turns(16):
        loop.learn(batch())


class ScheduleFree(torch.optim.Optimizer):
    """Keeps the point of its steps beside the average that is trained, and swaps for an evaluation."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "count": 0, "train_mode": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, 1 / group["count"]).sub_(p.grad, alpha=0.1 * group["lr"])
                z.sub_(p.grad, alpha=group["lr"])

    @torch.no_grad()
    def swap(self, train: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] is not train:
                group["train_mode"] = train
                for p in group["params"]:
                    p.lerp_(self.state[p]["z"], 1 - 0.9 if train else 1 - 1 / 0.9)


@report("facebookresearch/schedule_free#32", cuts=(3, 4, 8), remark="was changed in place after guard.step()")
def saved_in_evaluation(loop: Loop) -> None:
    """A run saved with the weights of the evaluation trains on with them."""
    loop.optimizer = ScheduleFree(loop.model.parameters())
    loop.restore()
    for n in loop.turns(12):
        loop.optimizer.swap(True)
        loop.learn(batch())
        if n % 4 == 3:
            loop.optimizer.swap(False)
            loop.note("evaluation", loop.loss_of(torch.ones(2, WIDTH)))


@report("dansuh17/segan-pytorch#14")
def optimizers_of_two_networks(loop: Loop) -> None:
    """The optimizers of generator and discriminator are not saved."""
    adversarial(loop, register=True)


@report("NVlabs/stylegan2-ada-pytorch#108", "is not registered")
def optimizer_of_the_discriminator(loop: Loop) -> None:
    """A resumed run has new moments for one of its networks."""
    adversarial(loop, register=False)


def adversarial(loop: Loop, register: bool) -> None:
    critic = nn.Linear(WIDTH, 1)
    other = torch.optim.Adam(critic.parameters(), lr=0.05)
    loop.restore(critic=critic, **({"other": other} if register else {}))
    for _ in loop.turns(12):
        each = batch()
        other.zero_grad()
        (critic(each) * loop.model(each).detach()).square().mean().backward()
        other.step()
        loop.optimizer.zero_grad()
        loop.descend((loop.model(each) - critic(each)).square().mean())
        loop.step()


@report("rosinality/sagan-pytorch#8")
def spectral_norm(loop: Loop) -> None:
    """A discriminator with a spectral norm trains otherwise behind a load."""
    loop.model[0] = nn.utils.parametrizations.spectral_norm(loop.model[0])
    loop.model[2] = nn.utils.spectral_norm(loop.model[2])
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.05, momentum=0.9)
    loop.restore()
    for _ in loop.turns(12):
        loop.learn(batch())


@report("Megvii-BaseDetection/YOLOX#1318")
def average_beside_the_model(loop: Loop) -> None:
    """Model and average both begin at the average's weights."""
    ema = AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loop.restore(ema=ema)
    for _ in loop.turns(12):
        loop.learn(batch())
        ema.update_parameters(loop.model)


@report("Lightning-AI/pytorch-lightning#11665", cuts=(3, 6, 9))
def averaging_that_begins_later(loop: Loop) -> None:
    """A run in its averaging phase cannot be resumed."""
    swa, scheduler = AveragedModel(loop.model), SWALR(loop.optimizer, 0.05, 3)
    loop.restore(swa=swa, scheduler=scheduler)
    for n in loop.turns(12):
        loop.learn(batch())
        if n >= 5:
            swa.update_parameters(loop.model)
            scheduler.step()


class Average(nn.Module):
    """An average whose decay grows with a count of updates."""

    def __init__(self, model: nn.Module, count: Any = 0) -> None:
        super().__init__()
        self.weights = nn.ParameterList(p.detach().clone() for p in model.parameters())
        self.weights.requires_grad_(False)
        self.updates = count

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = 0.9 * (1 - math.exp(-float(self.updates) / 4))
        for mean, weight in zip(self.weights, model.parameters(), strict=True):
            mean.lerp_(weight, 1 - decay)


@report("lightly-ai/lightly-train#892", "average.updates changes during training, and no checkpoint has it")
def updates_of_an_average(loop: Loop) -> None:
    """The count of updates is a plain number, and the decay begins anew."""
    average = Average(loop.model)
    loop.restore(average=average)
    for _ in loop.turns(12):
        loop.learn(batch())
        average.update(loop.model)


@report("ultralytics/yolov5#310")
def updates_in_a_buffer(loop: Loop) -> None:
    """The average restarts with a count of 0, if that is no buffer."""
    average = Average(loop.model, None)
    del average.updates
    average.register_buffer("updates", torch.zeros(()))
    loop.restore(average=average)
    for _ in loop.turns(12):
        loop.learn(batch())
        average.update(loop.model)


@report("atomistic-machine-learning/schnetpack#785", cuts=(3, 4, 8))
def average_in_place_of_the_weights(loop: Loop) -> None:
    """The checkpoint is written while the model holds the average's weights."""
    ema = AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loop.restore(ema=ema)
    for n in loop.turns(12):
        loop.learn(batch())
        ema.update_parameters(loop.model)
        if n % 4 == 3:
            own = {name: value.clone() for name, value in loop.model.state_dict().items()}
            loop.model.load_state_dict(ema.module.state_dict())
            loop.note("evaluation", loop.loss_of(torch.ones(2, WIDTH)))
            loop.model.load_state_dict(own)


@report("ai2cm/ace#349", "an average of weights is not registered")
def average_in_no_checkpoint(loop: Loop) -> None:
    """The average begins anew at the present weights."""
    ema = AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loop.restore()
    for _ in loop.turns(16):
        loop.learn(batch())
        ema.update_parameters(loop.model)
        loop.note("average", next(ema.parameters()).sum())


class Shadow:
    """An average in a list, with a state of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow, self.count = [p.detach().clone() for p in model.parameters()], 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        for mean, weight in zip(self.shadow, model.parameters(), strict=True):
            mean.lerp_(weight, 1 - min(0.9, (1 + self.count) / (10 + self.count)))

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow, self.count = [each.clone() for each in state["shadow"]], state["count"]


@report("fadel/pytorch_ema#6")
def average_in_a_list(loop: Loop) -> None:
    """The shadow weights of an average have no state dict."""
    average = Shadow(loop.model)
    loop.restore(average=average)
    for _ in loop.turns(12):
        loop.learn(batch())
        average.update(loop.model)


@pytest.mark.parametrize("row", reports.rows())
def test_reported_optimizer_or_average_is_exact_or_said(
    row: Report, caplog: pytest.LogCaptureFixture
) -> None:
    row.check(caplog)
