"""Diagnosis: the class of an error that ends training, from its type, its text, and the frames that it passed.

No value of a variable is read: a record has files, lines, functions and the error's own message, in which secrets are replaced.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from ...providers.redaction import redacted
from .failure_classes import CLASSES, FailureClass
from .messages import TrainingFailed
from .progress import line_of, of_library, phase_of

#: Characters that are kept of an error's message.
_MESSAGE = 2000


#: Texts of errors, by class; the first that is found counts. Each is a text of torch 2.13, gloo, NCCL or Python.
_TEXTS: tuple[tuple[str, str], ...] = (
    ("cuda-memory", r"CUDA out of memory|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
    ("loader-worker", r"DataLoader worker \(pid.*(?:exited unexpectedly|is killed by signal)"),
    (
        "peer-lost",
        r"Connection (?:closed|reset) by peer|Timed out waiting \d+ms for (?:recv|send)|NCCL communicator was aborted|"
        r"ncclRemoteError|remote process exited|Broken pipe.*gloo|gloo.*(?:Broken pipe|Connection refused)|"
        r"Watchdog caught collective operation timeout|store->(?:get|wait)|socketPollConnect",
    ),
    ("host-memory", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory"),
    (
        "nan",
        r"returned nan values|non-finite|nan (?:loss|gradient)|(?:loss|gradient|norm)\b.{0,40}\b(?:nan|inf)\b|infinite or NaN",
    ),
    (
        "gpu",
        r"CUDA error: |uncorrectable ECC|fallen off the bus|cuDNN error|CUBLAS_STATUS_EXECUTION_FAILED|device-side assert",
    ),
    ("disk-full", r"No space left on device|Disk quota exceeded"),
)
#: Classes of errors by the names of their types, those of their bases included.
_TYPES = {
    "OutOfMemoryError": "cuda-memory",  # torch's; Python's is MemoryError
    "MemoryError": "host-memory",
    "FloatingPointError": "nan",
    "DistBackendError": "peer-lost",
    "DistNetworkError": "peer-lost",
    "DistStoreError": "peer-lost",
}
#: A frame in the text that a loader's worker sends to the training process.
_WORKER_FRAME = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE
)
_FROM_WORKER = re.compile(r"\ACaught \w+ in DataLoader worker process")


@dataclass(frozen=True, slots=True)
class DiagnosedError:
    """An error that ends training."""

    #: Its class, a name in `CLASSES`.
    kind: str
    #: What told the class: "type", "text", "place", or several of them.
    evidence: tuple[str, ...]
    #: The error's type, as "torch.OutOfMemoryError", and its message.
    error: str
    message: str
    #: The phase of training in which it arose, as in `progress`, and the innermost line of the script.
    phase: str
    where: str
    #: Files, lines and functions, the outermost first.
    stack: tuple[str, ...]
    #: Equal for two errors of one type that arose at one place.
    fingerprint: str

    @property
    def of(self) -> FailureClass:
        """The class's row."""
        return CLASSES[self.kind]

    def line(self) -> str:
        """Return the failure as one line for a person."""
        phase = f" in {self.phase}" if self.phase not in ("", "other", self.kind) else ""
        at = f" at {self.where}" if self.where else ""
        return f"{self.of.says}{phase}{at} ({': '.join(filter(None, (self.error, self.first)))})"

    @property
    def first(self) -> str:
        """The first line of the error's message; of an error from a loader's worker the last one, which has it."""
        lines = self.message.strip().splitlines() or [""]
        return lines[-1] if _FROM_WORKER.match(self.message) else lines[0]

    def message_at(self, step: int) -> TrainingFailed:
        """Return the message to the agent.

        Args:
            step: the completed steps.
        """
        return TrainingFailed(
            self.kind, self.error, self.first, self.where, self.phase, self.fingerprint, step
        )


def diagnose(error: BaseException) -> DiagnosedError:
    """Return the diagnosis of an error that ended training."""
    message = _without_secrets(str(error))
    frames = [*_frames(error.__traceback__)]
    phase = next((found for found in map(phase_of, frames) if found), "other")
    where = next((line_of(each) for each in reversed(frames) if not of_library(each[0])), "")
    if from_worker := _FROM_WORKER.match(message):
        inside = [
            (each["file"], int(each["line"]), each["function"]) for each in _WORKER_FRAME.finditer(message)
        ]
        where = next((line_of(each) for each in reversed(inside) if not of_library(each[0])), where)
        frames += inside
    votes = {
        "type": _by_type(error),
        "text": next((kind for kind, text in _TEXTS if re.search(text, message, re.IGNORECASE)), ""),
        "place": "data" if from_worker or phase == "data" else "",
    }
    # What an error says of itself weighs more than where it arose: a disk may be full in a loader.
    kind = votes["text"] or votes["type"] or votes["place"] or "program"
    if kind == "network" and votes["place"]:
        kind = "data"
    stack = tuple(f"{file}:{line} in {function}" for file, line, function in frames)
    name = _name(error)
    key = "\n".join([name, *stack])
    return DiagnosedError(
        kind,
        tuple(source for source, vote in votes.items() if vote == kind),
        name,
        message,
        phase,
        where,
        stack,
        hashlib.blake2b(key.encode(), digest_size=8).hexdigest(),
    )


def _name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _by_type(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk-full"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return "host-memory"
    named = (kind for cls in type(error).__mro__ if (kind := _TYPES.get(cls.__name__)))
    return next(named, "network" if isinstance(error, (ConnectionError, TimeoutError)) else "")


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


def _without_secrets(text: str) -> str:
    lines = text[:_MESSAGE].split("\n")
    return "\n".join(" ".join(redacted(line.split(" "))) for line in lines)
