"""What a start of the job says of itself in the store is read by everybody who may read checkpoints, for ever."""

from __future__ import annotations

import json
import sys

import pytest

from tests.fakes.store import FakeStore
from tests.fakes.training import guarded, small

pytestmark = pytest.mark.torch

SECRETS = {
    "--wandb-api-key": "0123456789abcdef0123456789abcdef01234567",
    "--db-password": "correct-horse",
    "--hf-token": "hf_Zq8mWx1Kd93RtYuIoPasDfGh",
}


@pytest.mark.parametrize("joined", [False, True], ids=["two words", "one word"])
def test_secrets_of_argv_in_store(joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command stays readable; the words that look like secrets are in no object of the store."""
    pairs = [[f"{name}={value}"] if joined else [name, value] for name, value in SECRETS.items()]
    said = [word for pair in pairs for word in pair]
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--lr", "0.1", *said, "--epochs", "3"])
    store = FakeStore()
    with guarded(store, small().values) as guard:
        guard.restore()
    everything = b"\n".join(store.objects.values()).decode(errors="replace")
    assert [value for value in SECRETS.values() if value in everything] == []
    command = " ".join(json.loads(store.objects["run/attempts/0001.json"])["attempt"]["info"]["command"])
    assert command.startswith("python train.py --lr 0.1 --wandb-api-key")
    assert command.endswith("--epochs 3")
