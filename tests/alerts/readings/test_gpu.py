"""What NVML tells of GPUs: a library in its place, because no GPU is here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spotguard.alerts.readings.gpu import Gpus


class NVMLError_GpuIsLost(Exception):
    """As `pynvml` makes it."""


class NotSupported(Exception):
    """A GPU without ECC."""


class FakeNvml:
    """Two GPUs: what each answers, or raises."""

    def __init__(self, old: bool = False) -> None:
        self.lost: set[int] = set()
        self.bits = {0: 0, 1: 0}
        self.ecc: dict[int, Any] = {0: 3, 1: NotSupported("no ECC")}
        name = "nvmlDeviceGetCurrentClocks" + ("ThrottleReasons" if old else "EventReasons")
        setattr(self, name, lambda gpu: self._answer(gpu, self.bits[gpu]))

    def _answer(self, gpu: int, value: Any) -> Any:
        if gpu in self.lost:
            raise NVMLError_GpuIsLost("lost")
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> Any:
        assert sensor == 0
        return self._answer(gpu, 60 + gpu)

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> Any:
        assert (kind, counter) == (1, 0)  # uncorrected, since the driver was loaded
        return self._answer(gpu, self.ecc[gpu])

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return self._answer(gpu, SimpleNamespace(used=30, total=40))


def read(gpus: Gpus) -> dict[tuple[str, ...], float]:
    return {(name.removeprefix("spotguard_gpu_"), *labels): value for name, labels, value in gpus.read()}


def test_each_gpu_has_its_readings_and_lacks_what_it_does_not_tell() -> None:
    nvml = FakeNvml()
    nvml.bits[1] = 0x40 | 0x4  # too hot, and a cap of the user's, which is no trouble
    assert read(Gpus(nvml)) == {
        ("up", "0"): 1.0,
        ("temperature_celsius", "0"): 60.0,
        ("throttled", "0", "hardware"): 0.0,
        ("throttled", "0", "heat"): 0.0,
        ("throttled", "0", "power-brake"): 0.0,
        ("ecc_errors_total", "0"): 3.0,
        ("memory_used_ratio", "0"): 0.75,
        ("up", "1"): 1.0,
        ("temperature_celsius", "1"): 61.0,
        ("throttled", "1", "hardware"): 0.0,
        ("throttled", "1", "heat"): 1.0,
        ("throttled", "1", "power-brake"): 0.0,
        ("memory_used_ratio", "1"): 0.75,
    }


def test_the_older_name_of_a_function_is_known() -> None:
    nvml = FakeNvml(old=True)
    nvml.bits[0] = 0x8
    assert read(Gpus(nvml))["throttled", "0", "hardware"] == 1.0


def test_a_gpu_that_is_lost_is_down_and_the_others_are_read() -> None:
    nvml = FakeNvml()
    gpus = Gpus(nvml)
    nvml.lost = {0}
    found = read(gpus)
    assert (found["up", "0"], found["up", "1"]) == (0.0, 1.0)
    assert ("temperature_celsius", "0") not in found


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    nvml = FakeNvml()
    nvml.nvmlInit = lambda: (_ for _ in ()).throw(RuntimeError("Driver Not Loaded"))  # type: ignore[method-assign]
    gpus = Gpus(nvml)
    assert gpus.closed == "Driver Not Loaded"
    assert read(gpus) == {}
