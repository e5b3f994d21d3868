"""Diagnosis: the class of an error that ends training, from its type, its text, and the frames that it passed.

No value of a variable is read: a record has files, lines, functions and the error's own message, in which secrets are replaced.
"""

from __future__ import annotations

import errno
import hashlib
import re
import select
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from ....providers.redaction import redacted_text
from ..failure_classes import CLASSES, HARDWARE_TEXTS, FailureClass, confidence_of
from ..messages import TrainingFailed
from .thread_place import line_of, of_library, phase_of

#: Characters of an error's message that are looked at, and that are kept: half from its begin, half from its end. A long one is
#: that of a loader's worker, whose last line says what happened.
_LOOKED_AT, _KEPT = 20_000, 4_000


#: Texts of errors, by class; the first that is found counts. They are texts of torch 2.13, gloo, NCCL, DeepSpeed and Lightning.
_TEXTS: tuple[tuple[str, str], ...] = (
    ("program", r"Duplicate GPU detected"),
    # The memory that it pins is the host's, although CUDA allocates it.
    ("host-memory", r"in pin memory thread[\s\S]*out of memory"),
    (
        "cuda-memory",
        r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|Cuda failure 2 'out of memory'|"
        r"(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
    ),
    (
        "loader-worker",
        r"DataLoader worker \(pid.*(?:exited unexpectedly|is killed by signal)|Pin memory thread exited",
    ),
    ("data", r"DataLoader timed out after"),
    (
        "peer-lost",
        r"(?:gloo|pair\.cc|nccl|ProcessGroup|TCPStore|c10d)[\s\S]*(?:Connection (?:closed|reset) by peer|Broken pipe|"
        r"Connection refused|Timed out waiting|timeout|aborted|ncclRemoteError|remote process exited|socketPollConnect)|"
        r"Application timeout caused pair closure|failed to pass monitoredBarrier|Timed out waiting \d+ms for (?:recv|send)",
    ),
    ("host-memory", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory"),
    (
        "nan",
        r"returned nan values|is non-finite|loss scale already at minimum|contains either `inf`, `nan`|Detected nan|"
        r"cannot convert float NaN|found invalid values:\s+tensor\([\s\S]*\bnan\b|"
        r"\b(?:loss|gradients?|weights?) (?:is|are|was|were|became|has|have|contains?) (?:a )?(?:nan|inf|not finite)\b",
    ),
    (
        "gpu",
        rf"CUDA error: |cuDNN error|CUBLAS_STATUS_EXECUTION_FAILED|device-side assert|{HARDWARE_TEXTS}",
    ),
    ("disk-full", r"No space left on device|Disk quota exceeded"),
)
#: Classes of errors by the names of their types, those of their bases included.
_TYPES = {
    "OutOfMemoryError": "cuda-memory",  # torch's; Python's is MemoryError
    "MemoryError": "host-memory",
    "FloatingPointError": "nan",
    "DistNetworkError": "peer-lost",
    "DistStoreError": "peer-lost",
}
#: Packages whose errors are of a connection.
_NETWORK = frozenset(
    {"aiohttp", "botocore", "grpc", "http", "httpcore", "httpx", "requests", "ssl", "urllib", "urllib3"}
)
#: A frame in the text that a loader's worker sends to the training process.
_WORKER_FRAME = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE
)
#: What differs between two runs of one program.
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_FROM_WORKER = re.compile(r"\ACaught \w+ in (?:DataLoader worker process|pin memory thread)")


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
    #: Equal for two errors of one type that arose at one place of the user's code with one message.
    fingerprint: str
    #: Whether the next start would meet it again, if it arose at the same step twice.
    stays: bool

    @property
    def of(self) -> FailureClass:
        """The class's row."""
        return CLASSES[self.kind]

    @property
    def confidence(self) -> str:
        """How sure the class is: "high" if two sources agree, "medium" of one, and "low" if none tells it."""
        return confidence_of(len(self.evidence))

    def line(self) -> str:
        """Return the failure as one line for a person."""
        phase = f" in {self.phase}" if self.phase not in ("", "other", self.kind) else ""
        at = f" at {self.where}" if self.where else ""
        return f"{self.of.says}{phase}{at} ({': '.join(filter(None, (self.error, self.first)))})"

    @property
    def first(self) -> str:
        """The first line of the error's message; of an error from a loader's worker the last one, which has it behind its type."""
        lines = self.message.strip().splitlines() or [""]
        return lines[-1].removeprefix(f"{self.error}: ") if _FROM_WORKER.match(self.message) else lines[0]

    def message_at(self, step: int) -> TrainingFailed:
        """Return the message to the agent.

        Args:
            step: the completed steps.
        """
        return TrainingFailed(
            self.kind,
            self.error,
            self.first,
            self.where,
            self.phase,
            self.fingerprint,
            step,
            self.stays,
            confidence=self.confidence,
        )


def diagnose(error: BaseException) -> DiagnosedError:
    """Return the diagnosis of an error that ended training."""
    chain = [*_chain(error)]
    # It is cut first only where it is very long: a cut may hide a secret's form.
    text = redacted_text(_middle_cut(_text(error), _LOOKED_AT))
    frames = [*_frames(error.__traceback__)]
    phase = next((found for found in map(phase_of, frames) if found), "other")
    where = next((line_of(each) for each in reversed(frames) if not of_library(each[0])), "")
    if from_worker := _FROM_WORKER.match(text):
        inside = [
            (each["file"], int(each["line"]), each["function"]) for each in _WORKER_FRAME.finditer(text)
        ]
        where = next((line_of(each) for each in reversed(inside) if not of_library(each[0])), where)
        frames += inside
    said = "\n".join([text, *map(_text, chain[1:])])
    votes = {
        "type": _of_worker_pipe(error, phase, frames) or next(filter(None, map(_by_type, chain)), ""),
        "text": next((kind for kind, words in _TEXTS if re.search(words, said, re.IGNORECASE)), ""),
        "place": "data" if from_worker or phase == "data" else "",
    }
    # What an error reports of itself weighs more than where it arose: a disk may be full in a loader.
    kind = votes["text"] or votes["type"] or votes["place"] or "program"
    stack = tuple(redacted_text(f"{file}:{line} in {function}") for file, line, function in frames)
    name = _name(error)
    # A loader that resumes comes to a bad sample by other lines of torch and of spotguard than the start before did.
    own = (at for at, (file, *_) in zip(stack, frames, strict=True) if not of_library(file))
    key = "\n".join([name, *own, _ADDRESS.sub("0x", text)])
    return DiagnosedError(
        kind,
        tuple(source for source, vote in votes.items() if vote == kind),
        name,
        _middle_cut(text, _KEPT),
        phase,
        where,
        stack,
        hashlib.blake2b(key.encode(errors="replace"), digest_size=8).hexdigest(),
        # A file system or a service may be back at the next start.
        CLASSES[kind].stays and not any(isinstance(each, OSError) for each in chain),
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _text(error: BaseException) -> str:
    """Return an error's message. It may be an object of the user's, or a tensor of a device that is gone."""
    try:
        return str(error)
    except Exception as why:  # noqa: BLE001 - the message of an error must not be an error
        return f"(its message cannot be read: {type(why).__name__})"


def _name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _by_type(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk-full"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return "host-memory"
    if isinstance(error, BrokenPipeError) and _unread():
        return "output"
    classes = type(error).__mro__
    if named := next((kind for cls in classes if (kind := _TYPES.get(cls.__name__))), ""):
        return named
    of_network = any(cls.__module__.partition(".")[0] in _NETWORK for cls in classes)
    return "network" if of_network or isinstance(error, (ConnectionError, TimeoutError)) else ""


def _unread() -> bool:
    """Return whether nobody reads stdout or stderr any more. A terminal sends Ctrl-C to `tee`, too, which dies of it."""
    poll = select.poll()
    for fd in (1, 2):
        poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _of_worker_pipe(error: BaseException, phase: str, frames: list[tuple[str, int, str]]) -> str:
    """Return the class of an error that a pipe to a loader's worker met: the worker is dead, and torch does not know it yet."""
    broken = isinstance(error, (EOFError, ConnectionError))
    names = [name for file, _, name in frames if file.endswith("torch/utils/data/dataloader.py")]
    return (
        "loader-worker"
        if broken and phase == "data" and names[-1:] in (["_try_get_data"], ["_get_data"])
        else ""
    )


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


def _middle_cut(text: str, size: int) -> str:
    """Return the text, or its begin and its end, cut between two words."""
    if len(text) <= size:
        return text
    begin, end = text[: size // 2], text[-size // 2 :]
    return f"{begin.rpartition(' ')[0]} … {end.partition(' ')[2]}"
