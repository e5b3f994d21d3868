"""A framework's training that errors end: each life goes on from the step that stood, and the last one ends as an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences
from tests.tiers import with_nights

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: By program: its framework, a case, and the number of ranks.
TRAININGS = {
    "hf.py": ("transformers", "plain", 1),
    "accel.py": ("transformers", "plain", 2),
    "pl.py": ("lightning", "plain", 1),
    "fab.py": ("lightning", "fsdp2", 2),
    "ds.py": ("deepspeed", "2-bf16", 2),
}
NIGHTS = ("accel.py", "fab.py", "ds.py")


@pytest.mark.parametrize("program", with_nights(TRAININGS, NIGHTS))
def test_an_error_loses_no_step_and_changes_no_bit(program: str, tmp_path: Path) -> None:
    framework, case, ranks = TRAININGS[program]
    training = Training(framework, program, case, tmp_path, ranks)
    training.plain()
    _, lives = training.cut("error:2", "step:4", "error:5")
    assert lives == 4
    for rank in ("", "1")[:ranks]:
        assert differences(training.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
