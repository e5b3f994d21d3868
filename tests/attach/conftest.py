"""Modules of frameworks' names, and of torch's, for Pythons below `spotguard run --attach`."""

from __future__ import annotations

from pathlib import Path

import pytest

#: A module of a framework's name, with a class that trains.
TRAINER = "class Trainer:\n    def train(self): print('trains')\n    fit = train\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Modules of frameworks' names, and of torch's, which a process that may have trained has imported."""
    for name in ("transformers/trainer", "lightning/pytorch/trainer/trainer", "accelerate", "torch"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRAINER)
    return tmp_path
