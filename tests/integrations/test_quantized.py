"""Quantized weights and moments of 8 bits and fewer: cut anywhere, a training ends as one that never was, or is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences, environment

# torchao takes 10 s to import, and compiles its optimizers' steps.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

EXACT = [
    "bitsandbytes.Adam8bit",
    "bitsandbytes.AdamW8bit",
    "bitsandbytes.PagedAdamW8bit",
    "bitsandbytes.Lion8bit",
    "nf4",
    "nf4-double",
    "llm-int8",
    "torchao.AdamW8bit",
    "torchao.AdamW4bit",
    "torchao.AdamWFp8",
    "int8",
    "int4",
    "int8-training",
    "qat",
    "float8",
]


@pytest.mark.parametrize("case", EXACT)
def test_a_training_that_is_cut_ends_as_one_that_never_was(case: str, tmp_path: Path) -> None:
    """Compared are the inner tensors: codes, scales, tables."""
    training = Training("quantized", "quantized.py", case, tmp_path)
    plain = training.plain()
    resumed, lives = training.cut("step:2", "kill:4")
    assert differences(plain, resumed) == []
    assert lives == 3


@pytest.mark.parametrize(("case", "kind"), [("nf4-whole", "Params4bit"), ("llm-int8-whole", "Int8Params")])
def test_a_frozen_weight_of_bitsandbytes_is_refused_with_the_way_out(
    case: str, kind: str, tmp_path: Path
) -> None:
    """The cases without `-whole` take it."""
    done = Training("quantized", "quantized.py", case, tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert f"model.0.base.weight is a bitsandbytes.nn.modules.{kind}" in done.stderr
    assert "register the trained parameters instead of the model" in done.stderr


def test_the_offloading_optimizer_is_refused(tmp_path: Path) -> None:
    """Its class is enough: it needs a GPU to be made."""
    script = (
        "import spotguard, torch; from torchao.optim import CPUOffloadOptimizer as C; "
        f"spotguard.register({str(tmp_path)!r}, run_id='x', model=torch.nn.Linear(2, 2), optimizer=C.__new__(C))"
    )
    words = [str(environment("quantized")), "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 1
    assert "optimizer is a CPUOffloadOptimizer" in done.stderr
    assert "[SG411]" in done.stderr
