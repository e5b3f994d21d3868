"""A Cloud Storage server that knows no batch requests, such as Google's storage-testbench: everything that deletes works."""

from __future__ import annotations

import pytest

from spotguard.cli import main
from spotguard.cli.commands.trials import doctor
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.fakes.patient import A_MOMENT
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Asked, Fault
from tests.servers.gcs import Gcs

pytest.importorskip("torch")

from tests.fakes.training import guarded, small, step_on

pytestmark = pytest.mark.torch


def test_a_start_a_save_prune_and_the_doctor_delete_object_by_object(
    gcs: Gcs, faults_before: FaultsBefore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them asks for one batch, is told 501, and asks for none again; what had to go is gone."""
    url = f"{gcs.fresh()}/some/where"
    network = faults_before(gcs)
    network.inject(Fault("answer", status=501, matching=batch))
    monkeypatch.setenv("SPOTGUARD_KEEP", "2")
    job, store = small(), open_store(url)
    with guarded(store, job.values) as guard:
        guard.restore()
        for number in range(3):
            step_on(guard, job, number)
            guard.save()
    assert saved(store) == [2, 3]
    assert main.main(["prune", url, "--keep", "1"]) == 0
    assert saved(store) == [3]
    monkeypatch.setattr(doctor, "PACE", A_MOMENT)
    assert main.main(["doctor", "--provider", "none", "--store", url]) == 0, capsys.readouterr().out
    left = [
        info.key
        for info in store.list("")
        if not info.key.startswith(("run/attempts/", "run/checkpoints/", "run/ends/"))
    ]
    assert left == []
    # The guard's store, prune's and the doctor's.
    assert len([asked for asked in network.seen if batch(asked)]) == 3


def batch(asked: Asked) -> bool:
    return asked.path.startswith("/batch")


def saved(store: BlobStore) -> list[int]:
    """The steps whose checkpoints have anything left in the store."""
    names = {info.key.split("/")[2] for info in store.list("run/checkpoints/")}
    return sorted(int(name.partition("-")[0]) for name in names)
