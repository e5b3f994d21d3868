"""Adapters: a training of a framework, resumed bit for bit. Public as `spotguard.integrations.<name>`.

Read `binding` first: the protocol of adapters, and what they share. `accelerate`, `deepspeed`, `lightning` and `transformers` (its
Trainer and subclasses) implement it for one framework each; `torchtitan` does so in its checkpoint manager. `horovod` gives
Horovod's ranks what DDP's have, and `ray` guards a worker of Ray Train. `marks` writes
preemptions and resumes into TensorBoard, Weights & Biases and MLflow. `import spotguard` loads none of them.

An adapter that uses a private method of its framework checks at once that the method is there, and refuses by name and version.
"""

from __future__ import annotations

import importlib
from typing import Any

_ADAPTERS = ("accelerate", "deepspeed", "horovod", "lightning", "ray", "torchtitan", "transformers")
_MARKS = ("mlflow", "tensorboard", "wandb")


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return importlib.import_module(f".{name}", __name__)
    if name in _MARKS:
        return importlib.import_module(f".marks.{name}", __name__)
    raise AttributeError(
        f"module {__name__!r} has no adapter {name!r}: there are {', '.join(_ADAPTERS + _MARKS)}"
    )
