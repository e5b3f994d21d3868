"""A loop with quantized or 8-bit state: `quantized.py OUT CASE [STORE [EVENT…]]`; events as in accel.py."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import spotguard

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends

STEPS, WIDTH = 6, 64  # matrices of 4096 elements: below that, both libraries keep float32 moments


class Lora(nn.Module):
    """A frozen layer, and a trained sum of two small ones."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))


def model_of(case: str) -> nn.Module:
    """The model of a case, quantized."""
    if case in ("nf4", "nf4-double", "llm-int8"):
        import bitsandbytes as bnb

        def base() -> Any:
            if case == "llm-int8":
                return bnb.nn.Linear8bitLt(WIDTH, WIDTH, has_fp16_weights=False)
            double = case == "nf4-double"
            return bnb.nn.Linear4bit(WIDTH, WIDTH, quant_type="nf4", compress_statistics=double)

        return nn.Sequential(Lora(base()), nn.Dropout(0.2), Lora(base())).to("cpu")  # `to` quantizes
    model: Any = plain()
    if case == "float8":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
    elif case in QUANTIZED:
        from torchao.quantization import quantize_

        quantize_(model, QUANTIZED[case]())
        if case in ("int8", "int4"):
            return nn.Sequential(Lora(model[0]), nn.Dropout(0.2), Lora(model[2]))
    return model  # type: ignore[no-any-return]


def _int8() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def _int4() -> Any:
    from torchao.quantization import IntxWeightOnlyConfig

    return IntxWeightOnlyConfig(weight_dtype=torch.int4)  # type: ignore[attr-defined]


def _int8_training() -> Any:
    from torchao.prototype.quantized_training import int8_weight_only_quantized_training

    return int8_weight_only_quantized_training()


def _qat() -> Any:
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)  # type: ignore[attr-defined]
    return QATConfig(weight_config=weights, step="prepare")


#: The configs of torchao's `quantize_`, by case.
QUANTIZED = {"int8": _int8, "int4": _int4, "int8-training": _int8_training, "qat": _qat}


def optimizer_of(case: str, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    library, _, kind = case.partition(".")
    if library == "bitsandbytes":
        import bitsandbytes as bnb

        return getattr(bnb.optim, kind)(params, lr=1e-3)  # type: ignore[no-any-return]
    if library == "torchao" or case == "int8-training":
        from torchao import optim

        return getattr(optim, kind or "AdamW8bit")(params, lr=1e-3)  # type: ignore[no-any-return]
    return torch.optim.AdamW(params, lr=1e-2)


def raw(value: Any) -> Any:
    """The value with the bytes of its tensors as plain tensors."""
    if isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        return {"class": type(value).__name__, "context": repr(context)} | {
            name: raw(getattr(value, name)) for name in names
        }
    if isinstance(value, torch.Tensor):
        return torch.Tensor._make_subclass(torch.Tensor, value.detach()).clone()
    return {key: raw(each) for key, each in value.items()} if isinstance(value, dict) else value


def main() -> None:
    out, case = Path(sys.argv[1]), sys.argv[2]
    whole = case.endswith("-whole")  # registers the model also where its frozen part cannot be saved
    case = case.removesuffix("-whole")
    ends = Ends(sys.argv[4:], Path(f"{out}.met"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = model_of(case)
    trained = {key.replace(".", "/"): p for key, p in model.named_parameters() if p.requires_grad}
    optimizer = optimizer_of(case, list(trained.values()))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    guard, done = None, 0
    if len(sys.argv) > 3:
        registered = (
            nn.ParameterDict(trained) if case in ("nf4", "nf4-double", "llm-int8") and not whole else model
        )
        guard = spotguard.register(
            sys.argv[3], run_id="quantized", model=registered, optimizer=optimizer, scheduler=scheduler
        )
        done = guard.restore()
    losses = []
    while done < STEPS:
        if guard and ends.meets(f"step:{done}"):
            spotguard.testing.preempt(guard, seconds=60)
        x = torch.randn(8, WIDTH)
        optimizer.zero_grad()
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        done += 1
        losses.append(loss.item())
        if guard:
            guard.step()
            if ends.meets(f"kill:{done}"):
                guard.save()
                os.kill(os.getpid(), signal.SIGKILL)
    torch.save(
        {
            "weights": {key: raw(p) for key, p in model.named_parameters()},
            "state": [raw(optimizer.state[p]) for p in trained.values()],
            "groups": [
                {key: raw(each) for key, each in group.items() if key != "params"}
                for group in optimizer.param_groups
            ],
            "scheduler": scheduler.state_dict(),
            "generator": torch.get_rng_state(),
            "last": losses[-1],
        },
        out,
    )


if __name__ == "__main__":
    main()
