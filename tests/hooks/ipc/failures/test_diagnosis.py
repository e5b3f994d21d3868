"""The class of an error, where it arose, and what of it is written down."""

from __future__ import annotations

import errno
import multiprocessing.connection
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import requests
import torch
from torch.utils.data import DataLoader, Dataset

from spotguard.hooks.ipc.failure_classes import CLASSES, OF_TEXT, OF_TYPE
from spotguard.hooks.ipc.failures import diagnosis
from spotguard.hooks.ipc.failures.diagnosis import DiagnosedError, diagnose

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
    assert here.confidence == "medium"
    assert re.fullmatch(r"test_diagnosis.py:\d+ in __getitem__", here.where)
    assert here.first == "no sample 0"


def test_an_error_of_a_worker_shows_the_place_in_the_worker() -> None:
    failure = diagnose(error_of(lambda: next(iter(DataLoader(Broken(), num_workers=1)))))
    assert (failure.kind, failure.phase, failure.error) == ("data", "data", "LookupError")
    assert re.fullmatch(r"test_diagnosis.py:\d+ in __getitem__", failure.where)
    assert failure.stack[-1].endswith("in __getitem__")
    assert failure.line().startswith(f"the data could not be read at {failure.where} (LookupError: no")


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
        (
            RuntimeError(
                "Caught RuntimeError in pin memory thread for device 0.\nOriginal Traceback (most recent call last):\n"
                "RuntimeError: CUDA error: out of memory"
            ),
            "host-memory",
        ),
        (RuntimeError("Pin memory thread exited unexpectedly"), "loader-worker"),
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
        (RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"), "nan"),
        (ValueError("Detected nan and/or inf values in `w`"), "nan"),
        (RuntimeError("Current loss scale already at minimum - cannot decrease scale anymore."), "nan"),
        (ValueError("norm must be one of 'fro', 'nuc', inf"), "program"),
        (RuntimeError("CUDA error: out of memory"), "cuda-memory"),
        (
            torch.distributed.DistBackendError("NCCL error, Cuda failure 2 'out of memory'"),
            "cuda-memory",
        ),
        (torch.distributed.DistBackendError("NCCL error: Duplicate GPU detected"), "program"),
        (
            RuntimeError("[gloo/transport/tcp/unbound_buffer.cc] Application timeout caused pair closure"),
            "peer-lost",
        ),
        (requests.exceptions.ConnectionError("Connection reset by peer"), "network"),
        (ConnectionResetError(104, "Connection reset by peer"), "network"),
        (RuntimeError("Function 'MulBackward0' returned nan values in its 0th output."), "nan"),
        (
            RuntimeError("The total norm of order 2.0 for gradients from `parameters` is non-finite"),
            "nan",
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "gpu"),
        (RuntimeError("CUDA error: device-side assert triggered"), "gpu"),
        (RuntimeError("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost."), "gpu"),
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


def test_two_errors_have_one_fingerprint_if_type_place_and_message_are_equal() -> None:
    def fail(error: type[Exception], text: str) -> Callable[[], None]:
        def run() -> None:
            raise error(text)

        return run

    first, again, other = (
        diagnose(error_of(fail(*each)))
        for each in (
            (ValueError, "object at 0x7f01"),
            (ValueError, "object at 0x7fff"),
            (TypeError, "object at 0x7f01"),
        )
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert diagnose(error_of(fail(ValueError, "sample 3"))).fingerprint != first.fingerprint


def test_the_way_through_a_library_to_the_users_line_makes_no_other_error() -> None:
    """A resumed loader reads the batches of before by another line than the next ones."""

    def fail() -> None:
        raise LookupError("no sample 0")

    def through(line: int) -> DiagnosedError:
        names: dict[str, Any] = {}
        exec(compile("\n" * line + "def call(fail): fail()", "/site-packages/loader.py", "exec"), names)
        return diagnose(error_of(lambda: names["call"](fail)))

    first, second = through(1), through(2)
    assert first.stack != second.stack
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (ValueError("bad"), True),
        (FloatingPointError("loss"), True),
        (FileNotFoundError("gone"), False),  # a file system may be back
        (TimeoutError("slow"), False),
        (requests.exceptions.ReadTimeout("slow"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),  # of another process
        (OSError(errno.EIO, "Input/output error"), False),
    ],
)
def test_only_an_error_that_the_next_start_would_meet_again_stays(error: Exception, stays: bool) -> None:
    assert raised(error).stays is stays


def test_the_cause_of_an_error_tells_its_class() -> None:
    def fail() -> None:
        try:
            raise FloatingPointError("loss")
        except FloatingPointError as error:
            raise RuntimeError("step failed") from error

    failure = diagnose(error_of(fail))
    assert (failure.kind, failure.error) == ("nan", "RuntimeError")


def test_an_error_whose_message_cannot_be_read_is_diagnosed() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert raised(Mute()).message == "(its message cannot be read: RuntimeError)"


def test_a_long_message_keeps_its_end_and_no_part_of_a_secret() -> None:
    for size in range(1900, 2100, 7):
        failure = raised(RuntimeError(f"{'x' * size} https://me:swordfish7@host/x {'y ' * 3000} the end"))
        assert "swordfi" not in failure.message
        assert failure.message.endswith("the end")


def test_no_secret_is_kept() -> None:
    secret = "hf_0123456789abcdefABCDEF"
    failure = raised(RuntimeError(f"403 for token {secret}\nat https://me:swordfish7@host/x"))
    assert secret not in repr(failure)
    assert "swordfish7" not in repr(failure)
    assert "403 for token" in failure.message


def test_a_message_of_any_form_is_diagnosed_before_anybody_waits() -> None:
    """The save comes after it. Patterns without bounds took minutes for such texts, and the test would run into its time-out."""
    for piece in ("a.a", "://hook.", "://a:b", "curl -x ", "machine\\n", "x-"):
        assert raised(RuntimeError(piece * 7000)).kind == "program"


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


def test_the_table_names_the_sources_that_may_tell_a_class() -> None:
    """`program` is what is left, although one text of NCCL's tells it, too."""
    told = {kind for kind, _ in diagnosis._TEXTS} - {"program"}
    assert told == {each.name for each in CLASSES.values() if OF_TEXT in each.evidence}
    typed = {each.name for each in CLASSES.values() if OF_TYPE in each.evidence}
    assert typed == {*diagnosis._TYPES.values(), "network", "output"}
    assert {each.confidence for each in CLASSES.values()} == {"low", "medium", "medium or high"}


def test_the_end_of_a_workers_pipe_is_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch does not know yet that the worker is dead, and raises what the pipe gave it."""
    here, ends = os.getpid(), [EOFError()]
    poll = multiprocessing.connection.Connection.poll

    def ended(connection: multiprocessing.connection.Connection, timeout: float = 0.0) -> bool:
        if os.getpid() == here and ends:  # once, and not in the worker
            raise ends.pop()
        return poll(connection, timeout)

    monkeypatch.setattr(multiprocessing.connection.Connection, "poll", ended)
    failure = diagnose(error_of(lambda: next(iter(DataLoader(Broken(), num_workers=1)))))
    assert (failure.kind, failure.evidence, failure.phase) == ("loader-worker", ("type",), "data")


def test_a_connection_of_the_datasets_own_that_ends_is_of_the_network() -> None:
    class Remote(Broken):
        def __getitem__(self, index: int) -> Any:
            raise ConnectionResetError

    assert diagnose(error_of(lambda: next(iter(DataLoader(Remote()))))).kind == "network"


@pytest.mark.parametrize(("read", "kind"), [(False, "output"), (True, "network")])
def test_a_broken_pipe_is_of_the_output_where_nobody_reads_that(read: bool, kind: str) -> None:
    """Ctrl-C ends `tee`, too; a pipe to a service may break while the output is read."""
    code = """
import os
from spotguard.hooks.ipc.failures.diagnosis import diagnose
reader, writer = os.pipe()
os.close(reader)
try:
    input()
    os.write(writer, b"a step")
except BrokenPipeError as error:
    os.write(2, diagnose(error).kind.encode())
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        assert it.stderr is not None
        if not read:
            it.stdout.close()
        it.stdin.write("\n")
        it.stdin.flush()
        assert it.stderr.read() == kind


def test_a_file_that_ends_early_in_a_dataset_is_of_the_data() -> None:
    class Truncated(Broken):
        def __getitem__(self, index: int) -> Any:
            raise EOFError("Ran out of input")

    assert diagnose(error_of(lambda: next(iter(DataLoader(Truncated()))))).kind == "data"
