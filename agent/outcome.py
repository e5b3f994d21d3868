"""Outcomes: how each notice ended, as one JSON record and one line for a person (law 13).

Times are seconds after the agent first read the notice, so that a record explains itself. The only wall-clock time in a
record (`seen`) is there to match it with the cloud's own logs.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any

from ..providers.notice import NoticeKind
from ..providers.text import amount

logger = logging.getLogger("spotguard.agent")

#: Bytes of the file of all records at which a new one begins: some thousand records.
_ROTATED_AT = 4 * 1024 * 1024
#: Records that wait for a file system that hangs, and seconds that the agent's end waits for it.
_WAITING, _PATIENCE = 64, 2.0
#: The end of a notice that its source withdrew while training could go on: nothing had to be committed.
WITHDRAWN = "withdrawn"
#: The end of a drill, or of the save of a stall, that something else has outdone.
BROKEN_OFF = "broken off"
#: The end of a command that the agent did not kill: after the signal for a command without sessions, or without a signal.
SIGNALLED, BY_ITSELF = "signalled", "ended by itself"


def unneeded(ended: str) -> bool:
    """Return whether an outcome's `ended` means that its save was no longer needed, so that none is missing."""
    return ended == WITHDRAWN or ended.startswith(BROKEN_OFF)


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """The answer of one training process to the notice."""

    #: Process id.
    pid: int
    #: Number of the user.
    uid: int
    #: Name of the run.
    run_id: str
    #: Name of the process, such as "train.py".
    name: str
    #: Rank of the process in its job.
    rank: int
    #: Number of ranks of its job.
    world: int
    #: From sending the notice to its receipt by the process.
    delivered: float | None
    #: The committed step.
    step: int | None
    #: When the state of the session stood still.
    gate: float | None
    #: When the first bytes were uploaded.
    first_byte: float | None
    #: When the session had committed.
    committed: float | None
    #: Bytes that were uploaded.
    bytes: int
    #: From the first byte to the marker, measured by the training process.
    seconds: float | None
    #: URL of the checkpoint.
    url: str
    #: Level of the checkpoint, as above; "" if the session did not commit.
    level: str
    #: Why less than the full state was committed; "" if it was not.
    less: str
    #: Why the session did not commit; "" if it did.
    why: str
    #: The Trainer that `run --attach` has attached in it; "" if its script registers.
    attached: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one notice. `core.preemption.Preemption.outcome` builds it."""

    #: Identity of the notice.
    id: str
    #: Identities of other notices that ended with this one.
    also: tuple[str, ...]
    #: Cause of the notice, as in the table of kinds below.
    kind: str
    #: Source of the notice, such as "aws spot/instance-action".
    source: str
    #: Details in the words of the source.
    detail: str
    #: Whether training continued afterwards: a drill, or the save of a stall.
    drill: bool
    #: Monotonic seconds of the first reading; not part of the record.
    seen_at: float
    #: Warning that is usual for this kind, in seconds.
    window: float
    #: Seconds left when the agent first read the notice.
    left: float
    #: Seconds kept back for the end of the command.
    reserve: float
    #: From sending the notice to its receipt by the slowest session.
    delivered: float | None
    #: The committed step; `null` if sessions committed different steps, or none.
    step: int | None
    #: Bytes that were uploaded, also in vain.
    bytes: int
    #: Bytes a second, all sessions together.
    rate: float | None
    #: When the state of the last session stood still.
    gate: float | None
    #: When the first bytes were uploaded.
    first_byte: float | None
    #: When the last session had committed; `null` unless all did.
    committed: float | None
    #: Lowest committed level: `full`, `partial-extras` or `weights`; "" unless all committed.
    level: str
    #: Why less than the full state was committed; "" if it was not.
    less: str
    #: Why nothing was committed; "" if everything was.
    why: str
    #: Seconds left after the last commit; `null` if this machine stays.
    slack: float | None
    #: How the command ended, such as "TERM after the commit, then killed at the reserve".
    ended: str
    #: Return code of the command; negative for a signal, `null` without an end.
    returncode: int | None
    #: Exit code of spotguard; `null` if spotguard continues.
    code: int | None
    #: The answer of each training process, as in the table below.
    sessions: tuple[SessionOutcome, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether work is lost: the machine goes, and not every session has committed."""
        return (
            self.committed is None
            and not unneeded(self.ended)
            and not self.ended_well
            and self.kind != NoticeKind.RESTART
        )

    @property
    def ended_well(self) -> bool:
        """Whether a command without sessions ended with 0.

        Its own save, if it makes one, has then succeeded as far as an agent can know.
        """
        return not self.sessions and self.returncode == 0 and self.ended in (SIGNALLED, BY_ITSELF)

    def tally(self) -> str:
        """Return how many of the job's ranks on this machine have committed, as text."""
        done = sum(each.committed is not None for each in self.sessions)
        here, world = len(self.sessions), max((each.world for each in self.sessions), default=1)
        elsewhere = f" here ({world} in all)" if here < world else ""
        return f"{done} of {here} ranks{elsewhere}"

    def summary(self) -> dict[str, Any]:
        """Return all fields as plain JSON values, without clock readings."""
        body = dataclasses.asdict(self)
        del body["seen_at"]
        return {**_rounded(body), "ended_well": self.ended_well, "line": self.line()}

    def record(self, seen: datetime) -> dict[str, Any]:
        """Return the JSON record. `seen` is `seen_at` on the wall clock."""
        return {"seen": seen.isoformat(timespec="milliseconds"), **self.summary()}

    def line(self) -> str:
        """Return the outcome as one line for a person."""
        what = "drill" if self.drill else f"{self.kind} notice"
        if self.kind == NoticeKind.FAILURE:
            what = "save for a failing rank"
        if self.kind == NoticeKind.PEER:
            what = f"another machine's {'drill' if self.drill else 'notice'} ({self.detail})"
        head = f"{what} from {self.source}"
        if self.kind == NoticeKind.STALL:
            head = self.detail
        elif self.kind == NoticeKind.FAILURE:
            head = f"{what} ({self.source})"
        step = "" if self.step is None else f" step {self.step}"
        ranks = any(each.world > 1 for each in self.sessions)
        parts = []
        if self.committed is not None:
            rate = f" at {amount(self.rate)}/s" if self.rate else ""
            size = f" ({amount(self.bytes)}{rate})" if self.bytes else ""
            level = as_level(self.level, "")
            parts += [f"COMMITTED{step} in {self.committed:.2f} s{size}"] + [level] * bool(level)
            parts += [self.tally()] if ranks else []
            parts += [] if self.slack is None else [f"{self.slack:.1f} s to spare"]
            parts += [self.less] if self.less else []
        else:
            if self.failed:
                parts.append(f"NOT COMMITTED ({self.why})")
            elif self.ended_well:
                parts.append(f"the command ended with 0 ({self.why})")
            if ranks or step:
                parts.append(f"{self.tally()} committed{step}" if ranks else step.strip())
        before = " before the commit" if self.committed is None and self.ended == WITHDRAWN else ""
        end = f"{self.ended}{before}" + (f", exit code {self.code}" if self.code is not None else "")
        return f"{head}: {'; '.join([', '.join(parts), end] if parts else [end])}"

    def measures(self) -> str:
        """Return how the notice and the first byte went, as words for a log."""
        parts = [f"seen with {self.left:.1f} s left"]
        if self.delivered is not None:
            parts.append(f"delivered in {self.delivered * 1000:.0f} ms")
        if self.first_byte is not None:
            parts.append(f"first byte after {self.first_byte:.2f} s")
        return ", ".join(parts)


def as_level(level: str, before: str) -> str:
    """Return words for a level below "full", after `before`; "" for "full"."""
    if level == "full":
        return ""
    return f"{before}the weights alone" if level == "weights" else f"{before}as {level}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def seen_time(outcome: Outcome, monotonic: float, wall: float) -> datetime:
    """Return the wall-clock time at which the agent first read the notice, given one instant on both clocks."""
    return datetime.fromtimestamp(wall - (monotonic - outcome.seen_at), UTC)


def log(outcome: Outcome, record: Mapping[str, Any]) -> None:
    """Log the outcome."""
    drill = outcome.drill and outcome.kind != NoticeKind.STALL
    done = logging.INFO if drill else logging.WARNING
    level = logging.ERROR if outcome.failed else done
    logger.log(level, "%s", outcome.line(), extra={"fields": {"outcome": record}})
    logger.debug("%s", outcome.measures())


class OutcomeFiles:
    """The files beside the agent's socket. A thread writes them, because their file system may hang and a kill may be due.

    Where a record cannot be written, the line of the log is the only one.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Write the record soon. Never blocks."""
        if self._waiting.qsize() >= _WAITING:
            self._fail("their file system hangs")
            return
        self._waiting.put(record)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="spotguard-outcomes", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit of processes counts threads; better late than not at all
                self._write(record)
                self._waiting.get()
                return
            self._thread = thread

    def close(self) -> None:
        """Wait a moment for the last record."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_PATIENCE)
            if self._thread.is_alive():
                self._fail("their file system hangs")

    def _run(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        try:
            write(record, self._socket.parent, self._socket.stem)
        except OSError as error:
            self._fail(error.strerror or str(error))

    def _fail(self, why: str) -> None:
        logger.error("the outcome cannot be written beside %s: %s", self._socket, why)


def write(record: dict[str, Any], folder: Path, run_id: str) -> Path:
    """Write the record beside the socket: the newest record alone into one file, and every record into another.

    Raises:
        OSError: the directory is gone or full. The line in the log is then the only record.
    """
    data = json.dumps(record).encode() + b"\n"
    last = folder / f"{run_id}.outcome.json"
    os.replace(_scratch(last, data), last)
    every = folder / f"{run_id}.outcomes.jsonl"
    if every.exists() and every.stat().st_size > _ROTATED_AT:
        _rotate(every)
    _write_all(every, data, os.O_APPEND)
    return last


def _rotate(every: Path) -> None:
    """Begin a new file. Of the records that the file before the last one had, only their numbers stay, for `earlier`."""
    last, kinds = every.with_suffix(".jsonl.1"), Counter[str]()
    for record in _records(last):
        kind = {name: record.get(name) for name in ("kind", "drill", "level", "ended")}
        kind["committed"] = None if record.get("committed") is None else 0.0
        kind["sessions"] = [{}] if record.get("sessions") else []
        kinds[json.dumps(kind)] += record.get("times", 1)
    lines = (json.dumps({**json.loads(kind), "times": number}) for kind, number in kinds.items())
    scratch = _scratch(every, "".join(f"{line}\n" for line in lines).encode())
    os.replace(every, last)
    os.replace(scratch, every)


def earlier(folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """Yield the records of earlier agents of this name, oldest first.

    Every record counts: a counter made from them must not be lower than that of the agent before.
    """
    every = folder / f"{run_id}.outcomes.jsonl"
    for path in (every.with_suffix(".jsonl.1"), every):
        for record in _records(path):
            yield from repeat(record, record.pop("times", 1))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # cut off by a full disk or a power cut
                if isinstance(record, dict):
                    yield record
    except OSError:
        return  # there was no earlier agent, or it had too few for a second file


def _scratch(path: Path, data: bytes) -> Path:
    """Write the data beside `path`, for which the file is meant; on a full disk nothing stays of it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_all(scratch, data, os.O_TRUNC)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    return scratch


def _write_all(path: Path, data: bytes, flag: int) -> None:
    # 0600: a service's record names the sessions of several users.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flag, 0o600)
    try:
        while data:  # a full disk, or a limit, takes a part first and refuses the rest (write(2))
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
