"""Ray Train: a drained node, an agent's notice or a dead worker, and the workers end as those that were never cut."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences

# Each test starts a cluster: a dozen processes of Ray, and minutes beside other tests.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: By case: where the workers end.
EVENTS = {"drain": "drain:20", "agent": "notice:20", "kill": "kill:60", "again": "kill:60"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = _training(tmp_path_factory.mktemp("plain"), "plain")
    training.plain()
    return training


@pytest.mark.parametrize("case", EVENTS)
def test_workers_that_are_cut_end_as_those_that_never_were(
    case: str, plain: Training, tmp_path: Path
) -> None:
    training = _training(tmp_path, case)
    done = training.run("cut", str(tmp_path / "store"), EVENTS[case])
    if case == "again":  # Ray gives up, and another `fit` of that name goes on
        assert done.returncode == 1
        done = training.run("cut", str(tmp_path / "store"), EVENTS[case])
    assert done.returncode == 0, done.stderr
    for rank in ("", "1"):
        assert differences(plain.result(f"plain{rank}"), training.result(f"cut{rank}")) == []
    starts = [line.split() for line in (tmp_path / "cut.lives").read_text().splitlines()]
    assert len(starts) == 4
    assert int(starts[-1][1]) > 0
    if case in ("drain", "agent"):
        assert starts[0][2] != starts[-1][2]  # on another node
    if case == "agent":
        assert ", 2 of 2 ranks, " in (tmp_path / "cut.agent").read_text()


def test_a_call_outside_a_worker_is_refused(tmp_path: Path) -> None:
    done = _training(tmp_path, "outside").run("out")
    assert done.returncode == 1
    assert "call it in train_loop_per_worker" in done.stderr


def _training(folder: Path, case: str) -> Training:
    training = Training("ray", "ray_train.py", case, folder)
    training.command = training.started  # Ray starts the workers
    # Ray asks the metadata service of each cloud in turn, usage statistics or not, unless this file names a provider.
    (folder / "ray_bootstrap_config.yaml").write_text("provider: {type: local}\n")
    training.env |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "no_proxy": "127.0.0.1,localhost",
        "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.2",
        "SPOTGUARD_EVERY": "0.1" if case in ("kill", "again") else "off",
    }
    return training
