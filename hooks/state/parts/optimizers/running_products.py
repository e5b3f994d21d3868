"""DeepSpeed's Adam on the CPU: it keeps two numbers in C++ that no `state_dict` has.

Adam divides by `1 - beta ** step`. DeepSpeed's code (`IncrementStep` in `csrc/includes/cpu_adam.h`) takes that power once, and
from then on multiplies it by beta at each step, in float32. A process that begins at step 1,000 takes the power of 1,000
instead, whose last bits differ: weights were off by 2e-6 after six epochs. So a restore repeats the multiplications, on
tensors of one element.

Two optimizers run this code: `DeepSpeedCPUAdam`, and `FusedAdam` where the accelerator is the CPU.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch.optim import Optimizer

#: Below this, `1 - x` is 1 in float32, whatever the last bits of x.
_NO_MATTER = 2.0**-26
#: The names of the classes, below `deepspeed.ops.adam`.
_CLASSES = ("DeepSpeedCPUAdam", "FusedAdam")


def running_products(optimizer: Optimizer) -> RunningProducts | None:
    """Return what repeats this optimizer's multiplications, or None if it keeps no numbers in C++."""
    cls = type(optimizer)
    on_cpu = all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"])
    known = cls.__name__ in _CLASSES and cls.__module__.startswith("deepspeed.ops.adam.")
    return RunningProducts(optimizer) if known and on_cpu else None


class RunningProducts:
    """The powers of one optimizer's betas.

    Attributes:
        since: the step at which the multiplications began: 1, or the first step with these betas.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._betas = self._all_betas()
        self.since = 1

    def at_boundary(self) -> None:
        """Notice betas that a scheduler has changed: the next step begins with a power again."""
        if (betas := self._all_betas()) != self._betas:
            self._betas, self.since = betas, max(self._steps(), default=0) + 1

    def repeat(self, since: int) -> None:
        """Bring the C++ code to where it was after the steps that the optimizer's state counts."""
        self._betas, self.since = self._all_betas(), since
        steps = [step for step, _ in groupby(self._steps())]  # a step of all parameters multiplies once
        last = max(steps, default=0)
        if all(beta**last < _NO_MATTER for betas in self._betas for beta in betas):
            return
        for back in range(last - since, -1, -1):
            for step in steps:
                if step - back > 0:
                    self._step_at(step - back)

    def _all_betas(self) -> list[tuple[float, ...]]:
        return [tuple(group["betas"]) for group in self._optimizer.param_groups]

    def _steps(self) -> list[int]:
        return [values["step"] for values in self._optimizer.state.values() if "step" in values]

    def _step_at(self, step: int) -> None:
        """Let the C++ code step tensors of one element."""
        optimizer: Any = self._optimizer
        group = optimizer.param_groups[0]
        numbers = [group["lr"], *group["betas"], group["eps"]]
        tensors = [torch.zeros(1) for _ in range(4)]
        if type(optimizer).__name__ == "FusedAdam":
            rest = [step, optimizer.adam_w_mode, int(group["bias_correction"]), group["weight_decay"]]
            optimizer.multi_tensor_adam(
                1, optimizer._dummy_overflow_buf, [[t] for t in tensors], *numbers, *rest
            )
        else:
            rest = [group["weight_decay"], group["bias_correction"], *tensors]
            optimizer.ds_opt_adam.adam_update(optimizer.opt_id, step, *numbers, *rest)
