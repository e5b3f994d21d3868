"""Losses: how often the detector reports spikes of a clean training, and how soon it reports a diverged one.

The clean trainings are simulated: a falling loss, noise with heavy tails or with memory, a warm-up, decays of the learning rate,
epochs of different difficulty. The seeds are fixed. The diverged ones are simulated too, and trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from spotguard.hooks.control.losses.detector import LossChange, LossDetector

from .rows import Row
from .scale import Scale
from .timing import microseconds

Series = Any
Random = np.random.Generator
_REPORTS = (LossChange.SUSPECT, LossChange.HIGH)


def measure(scale: Scale) -> Iterator[Row]:
    length = scale.of(20_000, 400)
    for name, course in COURSES.items():
        reports, seen = 0, 0
        for number, ((_, curve), (_, noise), share) in enumerate(
            product(CURVES.items(), NOISES.items(), (0.003, 0.03, 0.2))
        ):
            draw = np.random.default_rng(number)
            level = curve(np.arange(length))
            losses = course(draw, level) + np.maximum(np.abs(level), 1e-3) * share * noise(draw, length)
            reports += reported(losses)
            seen += length
        yield Row(f"reports in {seen:,} clean steps, {name}", "", (float(reports),), figure=0.5)
    found: list[float] = []
    for (name, (before, after)), share in product(DIVERGED.items(), (0.01, 0.05, 0.1, 0.2)):
        tries = [simulated(before, after, share, seed) for seed in range(scale.of(50, 2))]
        found += (soon := [each for each in tries if each < math.inf])
        what = f"divergences found of {len(tries)}, {name}, noise {share:.0%}"
        yield Row(what, "", (float(len(soon)),))
    yield Row("  steps until they are", "steps", tuple(found))
    torch.set_num_threads(1)
    steps, seeds = scale.of((400, 8), (80, 1))
    high = [trained(seed, 3000.0, steps) for seed in range(seeds)]
    what = f"networks found of {seeds}, whose learning rate becomes 3,000 times as high"
    yield Row(what, "", (float(sum(map(math.isfinite, high))),))
    same = [trained(seed, 1.0, steps) for seed in range(seeds)]
    what = f"reports in {seeds} networks that train on"
    yield Row(what, "", (float(sum(map(math.isfinite, same))),), figure=0.5)
    detector, losses = LossDetector(), iter(np.random.default_rng(0).normal(2, 0.1, 10**7).tolist())
    values = microseconds(
        lambda: detector.see(1, next(losses)), loops=scale.of(20_000, 100), times=scale.of(15, 2)
    )
    yield Row("a look at one loss", "µs", values)


# --- clean ---

CURVES: dict[str, Callable[[Series], Series]] = {
    "a language model": lambda t: 2.2 + 8.5 * np.exp(-t / 400) + 1.5 * (1 + t / 2000) ** -0.5,
    "a classifier": lambda t: 0.02 + 6.9 * np.exp(-t / 3000),
    "a fine-tuning": lambda t: 0.3 + 1.2 * np.exp(-t / 300),
    "a converged one": lambda t: np.full(len(t), 1.0),
    "a log-likelihood": lambda t: -3.0 * (1 - np.exp(-t / 2000)),
}


def with_memory(draw: Random, length: int) -> Series:
    """A disturbance decays by a third a step."""
    noise = draw.standard_t(3, length)
    for at in range(1, length):
        noise[at] = 0.7 * noise[at - 1] + math.sqrt(1 - 0.7**2) * noise[at]
    return noise


NOISES: dict[str, Callable[[Random, int], Series]] = {
    "normal": lambda draw, length: draw.normal(size=length),
    "Student's t, 2 degrees": lambda draw, length: draw.standard_t(2, length),
    "lognormal": lambda draw, length: draw.lognormal(size=length) - math.exp(0.5),
    "Pareto, 1.5": lambda draw, length: draw.pareto(1.5, length),
    "with memory": with_memory,
}


def of_epochs(change: float) -> Callable[[Random, Series], Series]:
    """Epochs of a few hundred steps, each harder or easier by up to this share."""

    def course(draw: Random, level: Series) -> Series:
        epoch = np.arange(len(level)) // draw.integers(300, 3000)
        return level * (1 + draw.uniform(-change, change, epoch[-1] + 1)[epoch])

    return course


def warmed_up(draw: Random, level: Series) -> Series:
    rise = np.ones(len(level))
    rise[:500] = np.linspace(1, 1.6, 500)[: len(level)]
    return level * rise


def decayed(draw: Random, level: Series) -> Series:
    steps = np.arange(len(level)) * 10 // len(level)
    return level * 0.6 ** (steps // 3)


COURSES: dict[str, Callable[[Random, Series], Series]] = {
    "one long epoch": lambda draw, level: level,
    "a warm-up": warmed_up,
    "decays of the learning rate": decayed,
    "epochs harder or easier by up to 15 %": of_epochs(0.15),
    "epochs harder or easier by up to 30 %": of_epochs(0.3),
}


def reported(losses: Series) -> int:
    """Return how many reports a training has."""
    detector = LossDetector()
    return sum(detector.see(step, loss) in _REPORTS for step, loss in enumerate(losses.tolist(), 1))


# --- diverged ---

#: The loss before and after.
DIVERGED = {
    "a language model back at chance (2.5 → 10.8)": (2.5, 10.8),
    "a classifier of 10 classes back at chance (0.3 → 2.3)": (0.3, 2.3),
    "a loss three times as high": (1.0, 3.0),
}


def simulated(before: float, after: float, share: float, seed: int) -> float:
    """Return the steps from a divergence to the report; infinite if there is none in 1,000."""
    draw = np.random.default_rng(seed)
    level = np.concatenate([np.full(500, before), np.full(1000, after)])
    losses = level * (1 + share * draw.standard_t(3, len(level)))
    detector = LossDetector()
    found = (step for step, loss in enumerate(losses.tolist(), 1) if detector.see(step, loss))
    return float(next(found, math.inf) - 500)


def trained(seed: int, factor: float, steps: int) -> float:
    """Return the steps from a change of the learning rate to the report; infinite if there is none."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    truth = nn.Linear(20, 10)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    detector = LossDetector()
    for step in range(1, 2 * steps + 1):
        if step == steps:
            optimizer.param_groups[0]["lr"] *= factor
        batch = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(network(batch), truth(batch).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if detector.see(step, loss.item()):
            return float(step - steps)
    return math.inf
