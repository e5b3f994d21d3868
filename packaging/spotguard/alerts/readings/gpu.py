"""NVIDIA's GPUs by NVML, if the package `nvidia-ml-py` and its driver are there: lost, throttled, hot, with memory errors.

The readings were seen on an NVIDIA H200. Errors and losses were tested with a library in NVML's place.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from .host import Reading

#: Reasons for which a GPU's clocks are lowered, by NVML's bits (nvml.h, nvmlClocksEventReasons). Idle, application's settings
#: and the power cap that a user has set are no trouble.
_REASONS = {0x08: "hardware", 0x20: "heat", 0x40: "heat", 0x80: "power-brake"}
#: nvml.h: NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_TEMPERATURE_GPU.
_UNCORRECTED, _VOLATILE, _OF_GPU = 1, 0, 0


class Gpus:
    """The GPUs that NVML knew at the begin.

    Args:
        nvml: NVML's binding; the package `pynvml` by default.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml if nvml is not None else _library()
        #: By index, or by serial where the driver tells it: what answered at the begin.
        self._handles: dict[str, Any] = {}
        #: Why nothing is read; "" if NVML answers.
        self.closed = "nvidia-ml-py is not installed" if self._nvml is None else ""
        if self._nvml is None:
            return
        try:
            self._nvml.nvmlInit()
            for index in range(self._nvml.nvmlDeviceGetCount()):
                self._handles[str(index)] = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:  # noqa: BLE001 - a foreign library: without a driver it raises errors of its own
            self.closed = str(error)

    def read(self) -> Iterator[Reading]:
        """Yield the readings of each GPU. One that does not answer any more is down."""
        for gpu, handle in self._handles.items():
            nvml = self._nvml
            temperature = self._ask(nvml.nvmlDeviceGetTemperature, handle, _OF_GPU)
            yield "spotguard_gpu_up", (gpu,), float(temperature is not _LOST)
            if temperature is _LOST:
                continue
            if temperature is not None:
                yield "spotguard_gpu_temperature_celsius", (gpu,), float(temperature)
            bits = self._ask(_throttling(nvml), handle)
            if isinstance(bits, int):
                for reason in sorted(set(_REASONS.values())):
                    on = any(bits & bit for bit, name in _REASONS.items() if name == reason)
                    yield "spotguard_gpu_throttled", (gpu, reason), float(on)
            errors = self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _VOLATILE)
            if isinstance(errors, int):
                yield "spotguard_gpu_ecc_errors_total", (gpu,), float(errors)
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
            if memory is not None and memory is not _LOST and memory.total:
                yield "spotguard_gpu_memory_used_ratio", (gpu,), memory.used / memory.total

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return NVML's answer; None if the GPU has none (no ECC, for instance), `_LOST` if it is gone."""
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - NVML's errors are classes that the library makes as it loads
            return _LOST if type(error).__name__ == "NVMLError_GpuIsLost" else None


_LOST = object()


def _throttling(nvml: Any) -> Callable[..., Any]:
    """Return the function for the reasons of lower clocks: its name changed with version 12."""
    name = "nvmlDeviceGetCurrentClocksEventReasons"
    return getattr(nvml, name, None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons  # type: ignore[no-any-return]


def _library() -> Any:
    return importlib.import_module("pynvml") if importlib.util.find_spec("pynvml") else None
