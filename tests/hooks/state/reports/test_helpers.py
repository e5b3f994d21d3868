"""Public reports of resumed runs that lost a scaler, a best value, an environment or a buffer: exact here, or said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.fakes.passes import WIDTH, Loop
from tests.fakes.public_reports import Report, Table, batch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Detected call of")]

reports = Table()
report = reports.report


# --- scalers ---------------------------------------------------------------------------------------------------


def scaled(loop: Loop, scaler: Any, scheduler: Any = None) -> None:
    """Train with a scale that overflows from time to time."""
    for _ in loop.turns(12):
        loop.optimizer.zero_grad()
        scaler.scale(loop.loss_of(batch())).backward()
        scaler.step(loop.optimizer)
        before = scaler.get_scale()
        scaler.update()
        loop.note("scale", scaler.get_scale())
        if scheduler is not None and scaler.get_scale() >= before:
            scheduler.step()
        loop.done += 1


def scaler_on_cpu() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)


@report("huggingface/transformers#11663", cuts=(3, 4, 7))
def scale_of_the_loss(loop: Loop) -> None:
    """The scale of mixed precision begins at its first value."""
    scaler = scaler_on_cpu()
    loop.restore(scaler=scaler)
    scaled(loop, scaler)


@report("huggingface/transformers#34053", cuts=(3, 4, 7))
def schedule_of_skipped_steps(loop: Loop) -> None:
    """After a resume other steps overflow, and the scheduler counts others."""
    scaler, scheduler = scaler_on_cpu(), lr_scheduler.StepLR(loop.optimizer, 2, 0.7)
    loop.restore(scaler=scaler, scheduler=scheduler)
    scaled(loop, scaler, scheduler)


@report("allenai/tango#154", "a gradient scaler is not registered", cuts=(4, 7))
def scale_in_no_checkpoint(loop: Loop) -> None:
    """The scaler is in no checkpoint."""
    scaler = scaler_on_cpu()
    loop.restore()
    scaled(loop, scaler)


class DynamicScale:
    """A scale of one's own that remembers its last overflow."""

    def __init__(self) -> None:
        self.scale, self.iteration, self.last_overflow = 2.0**126, 0, -1

    def update(self, finite: bool) -> None:
        self.iteration += 1
        if not finite:
            self.scale, self.last_overflow = self.scale / 2, self.iteration
        elif (self.iteration - self.last_overflow) % 3 == 0:
            self.scale *= 2


@report("facebookresearch/metaseq#3", cuts=(3, 4, 7))
def iteration_of_a_scale(loop: Loop) -> None:
    """The checkpoint has the scale, and not the iterations that change it."""
    scale = DynamicScale()
    loop.restore(scale=vars(scale))
    for _ in loop.turns(12):
        loop.optimizer.zero_grad()
        (loop.loss_of(batch()) * scale.scale).backward()
        gradients = [p.grad.div_(scale.scale) for p in loop.model.parameters()]
        finite = all(bool(each.isfinite().all()) for each in gradients)
        if finite:
            loop.optimizer.step()
        scale.update(finite)
        loop.done += 1


# --- best values -----------------------------------------------------------------------------------------------


class EarlyStopping:
    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.wait = patience, float("inf"), 0

    def update(self, value: float) -> bool:
        self.best, self.wait = (value, 0) if value < self.best else (self.best, self.wait + 1)
        return self.wait >= self.patience


@report("Lightning-AI/pytorch-lightning#1463", cuts=(3, 5, 8))
def patience(loop: Loop) -> None:
    """Early stopping begins with its whole patience, and without its best value."""
    stopping = EarlyStopping(2)
    loop.restore(stopping=vars(stopping))
    for _ in loop.turns(12):
        loop.learn(batch())
        if stopping.update(loop.losses[loop.done - 1]):
            loop.optimizer.param_groups[0]["lr"] *= 0.5
            stopping.wait = 0


@report("skorch-dev/skorch#267")
def best_of_the_history(loop: Loop) -> None:
    """The first epoch behind a resume is always the best one."""
    history: list[dict[str, Any]] = []
    best: dict[str, Any] = {"loss": float("inf"), "weights": {}}
    loop.restore(best=best, history={"epochs": history})
    for n in loop.turns(12):
        loop.learn(batch())
        loss = loop.losses[loop.done - 1]
        history.append({"epoch": n, "loss": loss, "best": loss < best["loss"]})
        if loss < best["loss"]:
            best.update(loss=loss, weights={k: v.clone() for k, v in loop.model.state_dict().items()})


@report("NCAR/miles-credit#473", "that no registered module holds")
def weights_of_the_loss(loop: Loop) -> None:
    """The loss has weights that are trained, and they are in no checkpoint."""
    weight = nn.Parameter(torch.zeros(()))
    loop.optimizer.add_param_group({"params": [weight], "lr": 0.01})
    loop.restore()


@report("ymcui/Chinese-LLaMA-Alpaca#147")
def adapter_of_a_frozen_model(loop: Loop) -> None:
    """Only the adapter is saved, and the losses do not continue where they were."""
    adapter = nn.Linear(8, 1)
    loop.model[2].requires_grad_(False)
    loop.model[2].register_module("adapter", adapter)
    loop.model[2].register_forward_hook(lambda layer, given, out: out + adapter(given[0]))
    loop.optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.05)
    loop.restore()
    for _ in loop.turns(12):
        loop.learn(batch())


# --- reinforcement learning ------------------------------------------------------------------------------------


@report("DLR-RM/stable-baselines3#326")
def replay_buffer(loop: Loop) -> None:
    """The buffer of an off-policy agent is empty after a resume."""
    seen, now = torch.zeros(8, WIDTH), {"place": 0}
    loop.restore(seen=seen, now=now)
    for n in loop.turns(16):
        seen[now["place"] % 8] = torch.randn(WIDTH)
        now["place"] += 1
        if n < 4:
            loop.done += 1
        else:
            loop.learn(seen[torch.randint(min(now["place"], 8), (4,))])


@report("nicklashansen/tdmpc2#28", cuts=(6, 10))
def buffer_of_numpy(loop: Loop) -> None:
    """The buffer is an array, and is made anew."""
    array, now = np.zeros((8, WIDTH), np.float32), {"place": 0}
    loop.restore(array=torch.from_numpy(array), now=now)
    for _ in loop.turns(16):
        array[now["place"] % 8] = np.random.rand(WIDTH)
        now["place"] += 1
        loop.learn(torch.from_numpy(array[np.random.randint(0, min(now["place"], 8), 4)]))


class Normalizer:
    """Running statistics of an environment, as of `VecNormalize`."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = np.zeros(WIDTH), np.ones(WIDTH), 1e-4

    def __call__(self, given: np.ndarray[Any, Any]) -> torch.Tensor:
        total = self.count + len(given)
        self.mean = self.mean + (given.mean(0) - self.mean) * len(given) / total
        self.var = (self.var * self.count + given.var(0) * len(given)) / total
        self.count = total
        return torch.from_numpy(((given - self.mean) / np.sqrt(self.var + 1e-8)).astype(np.float32))


@report("DLR-RM/stable-baselines3#1256")
def statistics_of_observations(loop: Loop) -> None:
    """The statistics that normalize observations begin anew."""
    normalizer = Normalizer()
    loop.restore(normalizer=vars(normalizer))
    for _ in loop.turns(12):
        loop.learn(normalizer(np.random.normal(3, 2, (4, WIDTH))))


class Walk:
    """An environment in the middle of an episode, with a generator and a count of its steps."""

    def __init__(self) -> None:
        self.generator, self.common_steps, self.place = np.random.default_rng(0), 0, np.zeros(WIDTH)

    def step(self) -> torch.Tensor:
        self.common_steps += 1
        self.place = self.place + self.generator.normal(0, 0.1 * self.common_steps, WIDTH)
        if np.abs(self.place).max() > 2:
            self.place = np.zeros(WIDTH)
        return torch.from_numpy(self.place.astype(np.float32)).repeat(4, 1)

    def state_dict(self) -> dict[str, Any]:
        generator = self.generator.bit_generator.state
        return {"generator": generator, "steps": self.common_steps, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        self.common_steps, self.place = state["steps"], state["place"]


@report("leggedrobotics/rsl_rl#89")
def episode_of_an_environment(loop: Loop) -> None:
    """Rewards drop behind a resume, because all episodes begin anew."""
    env = Walk()
    loop.restore(env=env)
    for _ in loop.turns(12):
        loop.learn(env.step())


@report("DLR-RM/stable-baselines3#1629")
def rate_of_exploration(loop: Loop) -> None:
    """Exploration begins at its first rate."""
    agent = {"epsilon": 1.0}
    loop.restore(agent=agent)
    for _ in loop.turns(12):
        explores = torch.rand(()).item() < agent["epsilon"]
        loop.learn(batch() if explores else torch.ones(4, WIDTH))
        agent["epsilon"] *= 0.8


@report("tensorpack/tensorpack#1094")
def exploration_by_the_step(loop: Loop) -> None:
    """The schedule of exploration takes the count of a new run."""
    loop.restore()
    for n in loop.turns(12):
        loop.learn(batch() if torch.rand(()).item() < 1 - n / 12 else torch.ones(4, WIDTH))


@report("DLR-RM/stable-baselines3#391")
def coefficient_with_an_optimizer(loop: Loop) -> None:
    """After a load the optimizer of the entropy's coefficient steps another tensor."""
    log_alpha = torch.zeros(1, requires_grad=True)
    other = torch.optim.Adam([log_alpha], lr=0.1)
    loop.restore(log_alpha=log_alpha, other=other)
    for _ in loop.turns(12):
        loop.optimizer.zero_grad()
        loss = loop.loss_of(batch())
        loop.descend(loss * log_alpha.exp().detach().squeeze())
        other.zero_grad()
        (log_alpha * (loss.detach() - 0.5)).sum().backward()
        other.step()
        loop.step()


class Policy(nn.Module):
    """A policy with a plain number that follows from a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.log_alpha = nn.Linear(WIDTH, 1), nn.Parameter(torch.zeros(()))
        self.temperature = 1.0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(given) * self.temperature + self.log_alpha
        self.temperature = self.log_alpha.exp().item()
        return out


@report("huggingface/lerobot#2877", "temperature changes during training", cuts=(6,))
def temperature_of_a_policy(loop: Loop) -> None:
    """The temperature is a plain number of the policy, and has its first value again."""
    loop.model = Policy()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    loop.restore()
    for _ in loop.turns(12):
        loop.learn(batch())


@report("ray-project/ray#22444")
def adaptive_coefficient(loop: Loop) -> None:
    """The adaptive coefficient of the divergence has its configured value again."""
    kl = {"coefficient": 0.2, "target": 0.5}
    loop.restore(kl=kl)
    for _ in loop.turns(12):
        loop.optimizer.zero_grad()
        each = batch()
        divergence = loop.model(each).square().mean()
        loop.descend(loop.loss_of(each) + kl["coefficient"] * divergence)
        loop.step()
        kl["coefficient"] *= 1.5 if divergence.item() > kl["target"] else 0.7


@report("Eclectic-Sheep/sheeprl#280")
def ratio_of_gradient_steps(loop: Loop) -> None:
    """A resumed run makes up for all gradient steps since its start."""
    ratio = {"previous": 0.0, "owed": 0.0}
    loop.restore(ratio=ratio)
    for n in loop.turns(12):
        ratio["owed"] += 1.5 * (n - ratio["previous"])
        ratio["previous"] = n
        loop.learn(*[batch() for _ in range(1 + int(ratio["owed"]))])
        ratio["owed"] -= int(ratio["owed"])


@pytest.mark.parametrize("row", reports.rows())
def test_reported_helper_or_environment_is_exact_or_said(
    row: Report, caplog: pytest.LogCaptureFixture
) -> None:
    row.check(caplog)
