"""A job of two machines hangs on one of them: both save the step, end their launchers, and meet again at the same step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machines import Rack, address

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.timeout(600), pytest.mark.slow]

ERRING = str(Path(__file__).parent / "programs" / "erring.py")
STEPS, AT = 9, 4


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    "time", [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, 20))]
)
def test_both_machines_start_again_at_the_step_at_which_one_hung(rack: Rack, time: int) -> None:
    nodes = [rack.add(), rack.add()]
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
    ]
    meeting = [f"--rdzv-endpoint={address(1)}:29400", "--rdzv-id=job"]
    options = "--every off --stall-first 4 --recover stall=restart:1"
    runs = [node.guarded(options, *launcher, *meeting, ERRING, str(STEPS), "hang", str(AT)) for node in nodes]
    again = {run.out.until(rf"^(rank [01]) at step {AT}, again$", 200)[1] for run in runs}
    assert again == {"rank 0", "rank 1"}
    # Behind the last step, torchrun itself reports one if the machine with its store is the first to end.
    assert not any("RendezvousConnectionError" in run.err.text for run in runs)
    assert [run.ended() for run in runs] == [0, 0]
    markers = (rack.store / "job" / "checkpoints").glob("*/COMMIT.json")
    assert {int(marker.parent.name[:9]) for marker in markers} == {AT, STEPS}
