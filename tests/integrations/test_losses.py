"""The losses that adapters pass to the guard: each step's own, before the framework changes it, in any micro-batch. And the end."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import ALONE, Training

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

ENVIRONMENTS = {
    "transformers": "transformers",
    "accelerate": "transformers",
    "lightning": "lightning",
    "deepspeed": "deepspeed",
}


@pytest.mark.parametrize("framework", ENVIRONMENTS)
def test_the_loss_of_each_step_reaches_the_guard(framework: str, tmp_path: Path) -> None:
    """The Trainer's own log replaces a loss that is not finite by a mean; its checkpoints are suspect all the same."""
    training = Training(ENVIRONMENTS[framework], "losses.py", framework, tmp_path)
    out = tmp_path / "out"
    alone = ALONE if framework == "deepspeed" else {}
    done = subprocess.run(
        [*training.started, framework, str(out), str(tmp_path / "store")],
        env=training.env | alone,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    own, given = found["own"], dict(found["given"])
    assert [*given] == [1, 2, 3, 4, 5, 6, 7, 8]
    for step, loss in given.items():
        mean = (own[2 * step - 2] + own[2 * step - 1]) / 2
        assert math.isnan(loss) if step >= 6 else math.isclose(loss, mean, rel_tol=1e-6), step
    assert found["suspect"] == "the loss is nan since step 6"
    evaluates = framework in ("transformers", "lightning")
    ends = [8, "callback"] if evaluates else []
    told = [*dict.fromkeys(found["ends"])]
    assert told == ends, "a Trainer ends training behind its last step, before a callback may upload"
    assert len(found["validated"]) == 2 * evaluates  # a finite one, and nan
    assert repr(found["metrics"]) == repr([["validation_loss", each] for each in found["validated"]])
