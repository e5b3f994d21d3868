"""The class of an error, where it arose, and what of it is written down."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from spotguard.hooks.ipc.diagnosis import DiagnosedError, diagnose
from spotguard.hooks.ipc.failure_classes import CLASSES

pytestmark = pytest.mark.torch


class Broken(Dataset[Any]):
    """A dataset whose only sample cannot be read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        raise LookupError(f"no sample {index}")


class Dying(Broken):
    def __getitem__(self, index: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def error_of(what: Callable[[], object]) -> Exception:
    try:
        what()
    except Exception as error:  # noqa: BLE001 - any error is to be diagnosed
        return error
    raise AssertionError("no error")


def raised(error: Exception) -> DiagnosedError:
    def fail() -> None:
        raise error

    return diagnose(error_of(fail))


def test_every_error_of_a_loader_is_one_of_the_data() -> None:
    here = diagnose(error_of(lambda: next(iter(DataLoader(Broken())))))
    assert (here.kind, here.evidence, here.phase) == ("data", ("place",), "data")
    assert re.fullmatch(r"test_diagnosis.py:\d+ in __getitem__", here.where)
    assert here.first == "no sample 0"


def test_an_error_of_a_worker_shows_the_place_in_the_worker() -> None:
    failure = diagnose(error_of(lambda: next(iter(DataLoader(Broken(), num_workers=1)))))
    assert (failure.kind, failure.phase, failure.error) == ("data", "data", "LookupError")
    assert re.fullmatch(r"test_diagnosis.py:\d+ in __getitem__", failure.where)
    assert failure.stack[-1].endswith("in __getitem__")
    assert failure.line().startswith(
        f"the data could not be read at {failure.where} (LookupError: LookupError: no"
    )


def test_a_worker_that_is_killed_is_named() -> None:
    failure = diagnose(error_of(lambda: next(iter(DataLoader(Dying(), num_workers=1)))))
    assert failure.kind == "loader-worker"
    assert "text" in failure.evidence


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "cuda-memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), "cuda-memory"),
        (MemoryError(), "host-memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "host-memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "host-memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
        (RuntimeError("PytorchStreamWriter failed writing file: No space left on device"), "disk-full"),
        (
            RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13483"),
            "peer-lost",
        ),
        (
            torch.distributed.DistBackendError(
                "NCCL error in: ProcessGroupNCCL.cpp, remote process exited or there was a network error"
            ),
            "peer-lost",
        ),
        (FloatingPointError("loss"), "nan"),
        (ValueError("the loss is nan at this step"), "nan"),
        (RuntimeError("Function 'MulBackward0' returned nan values in its 0th output."), "nan"),
        (
            RuntimeError("The total norm of order 2.0 for gradients from `parameters` is non-finite"),
            "nan",
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "gpu"),
        (RuntimeError("CUDA error: device-side assert triggered"), "gpu"),
        (ConnectionRefusedError("[Errno 111] Connection refused"), "network"),
        (TypeError("unsupported operand"), "program"),
        (ValueError("the information is in the finance table"), "program"),
    ],
)
def test_an_error_is_put_into_its_class(error: Exception, kind: str) -> None:
    assert raised(error).kind == kind


def test_a_full_disk_in_a_loader_is_a_full_disk() -> None:
    class Full(Broken):
        def __getitem__(self, index: int) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

    assert diagnose(error_of(lambda: next(iter(DataLoader(Full()))))).kind == "disk-full"


def test_an_error_in_backward_has_that_phase() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise RuntimeError("no gradient")

    x = torch.ones(1, requires_grad=True)
    fail: Any = Bad.apply
    assert diagnose(error_of(lambda: fail(x).sum().backward())).phase == "backward"


def test_two_errors_have_one_fingerprint_if_they_are_of_one_type_at_one_place() -> None:
    def fail(error: type[Exception], text: str) -> Callable[[], None]:
        def run() -> None:
            raise error(text)

        return run

    first, again, other = (
        diagnose(error_of(fail(*each)))
        for each in ((ValueError, "sample 3"), (ValueError, "sample 4"), (TypeError, "sample 3"))
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_no_secret_is_kept() -> None:
    secret = "hf_0123456789abcdefABCDEF"
    failure = raised(RuntimeError(f"403 for token {secret}\nat https://me:swordfish7@host/x"))
    assert secret not in repr(failure)
    assert "swordfish7" not in repr(failure)
    assert "403 for token" in failure.message


def test_an_error_without_text_has_a_line() -> None:
    assert re.fullmatch(
        r"an error of the program at test_diagnosis.py:\d+ in fail \(AssertionError\)",
        raised(AssertionError()).line(),
    )


def test_every_class_has_words_and_advice() -> None:
    for name, each in CLASSES.items():
        assert each.name == name
        assert each.says
        assert each.advice
        assert not each.advice.endswith(".")
