"""`guard.step()` never waits for the GPU: torch raises an error where a call would (`set_sync_debug_mode`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import spotguard

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


class Training:
    """A step of a model on the GPU, with all that a training registers."""

    def __init__(self, fused: bool, dtype: Any) -> None:
        torch.manual_seed(0)
        nn = torch.nn
        self.model = nn.Sequential(
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 1)
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=fused)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.notes = {"losses": torch.zeros(4, device="cuda"), "best": 0.5}
        self.dtype = dtype

    @property
    def state(self) -> dict[str, Any]:
        names = ("model", "optimizer", "schedule", "scaler", "average", "notes")
        return {name: getattr(self, name) for name in names if name != "scaler" or self.scaler.is_enabled()}

    def step(self) -> Any:
        self.optimizer.zero_grad()
        with torch.autocast("cuda", self.dtype):
            loss = self.model(torch.randn(16, 64, device="cuda")).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)
        self.notes["losses"][0] = loss.detach()
        return loss


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_boundary_launches_copies_and_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool, dtype: Any
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    training = Training(fused, dtype)
    guard = spotguard.register((tmp_path / "store").as_uri(), run_id="job", **training.state)
    guard.restore()
    for _ in range(12):  # the first boundaries follow the optimizer's new state
        guard.step(loss=training.step())
    for _ in range(40):
        loss = training.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            guard.step(loss=loss)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    guard.save()
    guard.close()

    again = Training(fused, dtype)
    second = spotguard.register((tmp_path / "store").as_uri(), run_id="job", **again.state)
    assert second.restore() == 52
    for (name, expected), found in zip(training.state.items(), again.state.values(), strict=True):
        if name == "notes":
            assert_equal(name, expected, found)
        else:
            assert_equal(name, expected.state_dict(), found.state_dict())
    second.close()


def assert_equal(name: str, expected: Any, found: Any) -> None:
    if isinstance(expected, dict):
        assert expected.keys() == found.keys(), name
        for key, value in expected.items():
            assert_equal(f"{name}.{key}", value, found[key])
    elif isinstance(expected, (list, tuple)):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            assert_equal(f"{name}.{number}", one, other)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(expected.cpu(), found.cpu()), name
    else:
        assert expected == found, name


def test_a_loss_that_became_nan_on_the_gpu_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    training = Training(True, torch.bfloat16)
    guard = spotguard.register((tmp_path / "store").as_uri(), run_id="job", **training.state)
    guard.restore()
    for number in range(12):
        loss = training.step()
        guard.step(loss=loss * float("nan") if number == 8 else loss)
    torch.cuda.synchronize()
    guard.step(loss=training.step())
    assert "the loss is nan" in caplog.text
    guard.close()
