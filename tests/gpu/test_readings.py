"""A reading of the helper of alerts on a real GPU, by NVML."""

from __future__ import annotations

import pytest

from spotguard.alerts.readings.gpu import Gpus

torch = pytest.importorskip("torch")
pytest.importorskip("pynvml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_each_gpu_is_up_and_has_its_temperature_memory_and_reasons() -> None:
    gpus = Gpus()
    assert gpus.closed == ""
    held = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    readings = {(name.removeprefix("spotguard_gpu_"), *labels): value for name, labels, value in gpus.read()}
    print(readings)
    assert readings["up", "0"] == 1
    assert 0 < readings["temperature_celsius", "0"] < 120
    assert (
        held.numel() / torch.cuda.get_device_properties(0).total_memory
        <= readings["memory_used_ratio", "0"]
        < 1
    )
    assert {key[2] for key in readings if key[0] == "throttled"} == {"hardware", "heat", "power-brake"}
    assert all(value in (0, 1) for key, value in readings.items() if key[0] == "throttled")
    assert readings["ecc_errors_total", "0"] == 0
