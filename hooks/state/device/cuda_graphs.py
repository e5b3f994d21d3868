"""CUDA graphs: work of ours neither becomes a part of a graph that training captures, nor ends its capture."""

from __future__ import annotations

import ctypes
import logging
import threading

import torch

log = logging.getLogger("spotguard")


def capturing() -> bool:
    """Return whether the calling thread captures a CUDA graph. What it launches then runs later, and again at each replay."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


_thread = threading.local()
#: `CU_STREAM_CAPTURE_MODE_RELAXED` of the CUDA driver.
_RELAXED = 2


def work_beside_captures() -> None:
    """Let the calling thread, one of ours, use CUDA while another thread captures a graph.

    A capture in torch's default mode ("global") forbids other threads to allocate, to pin, and to query events, and fails if
    one does. A thread that has chosen the relaxed mode for itself is left out (CUDA driver API,
    `cuThreadExchangeStreamCaptureMode`).
    """
    if getattr(_thread, "relaxed", False) or torch.version.cuda is None:
        return
    mode = ctypes.c_int(_RELAXED)
    try:
        error: object = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    except (OSError, AttributeError) as missing:
        error = missing
    if error:
        log.debug("a save during the capture of a CUDA graph would end that capture: %s", error)
    _thread.relaxed = True
