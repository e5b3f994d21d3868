"""The attempt whose newest checkpoint a drill has made: it trained on, so a kill behind the drill counts as a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.hooks.ipc import protocol
from spotguard.hooks.ipc.protocol import STALL
from tests.fakes.noticed import Heard, notice
from tests.fakes.training import guarded, small, step_on

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        pytest.param(notice(drill=True), set[int](), id="a drill: training goes on"),
        pytest.param(
            protocol.Preempt("n1", 60.0, 3.0, STALL, "test", True), {1}, id="a stall: the state stands still"
        ),
        pytest.param(notice(), {1}, id="a notice: the machine goes"),
    ],
)
def test_only_a_save_that_ends_training_spares_an_attempt_its_loss(
    asked: protocol.Preempt, kept: set[int], tmp_path: Path
) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        heard = Heard(guard)
        guard.restore()
        step_on(guard, job, 0, 1)
        guard._agent.hear(asked)
        assert heard.wait(protocol.Committed).step == 2
    job = small()
    with guarded(tmp_path, job.values) as guard:
        assert guard.restore() == 2
        assert guard._history.committed_attempts == kept
