"""What decides whether training continues bit for bit: recorded in the manifest, compared at restore."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

#: A difference in one of these may change low bits of the very next step.
_DECISIVE = {"torch": "torch", "threads": "CPU threads", "machine": "machine type", "device": "device"}


def describe() -> dict[str, Any]:
    """This process's environment as plain JSON."""
    device = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "device": device,
    }


def differences(saved: Mapping[str, Any]) -> list[str]:
    """One line for each thing that differs here from where the checkpoint was made, and may change low bits."""
    here = describe()
    return [
        f"saved with {words} {saved[key]}, restored with {here[key]}: training may differ in the last bits"
        for key, words in _DECISIVE.items()
        if key in saved and saved[key] != here[key]
    ]
