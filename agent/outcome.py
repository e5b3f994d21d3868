"""An outcome is loud: how one notice ended, as one JSON record and one line for a person (law 13).

Times are seconds after the notice was first read, so that a record explains itself; the one wall-clock time in
it (`seen`) is for matching it with the cloud's own logs.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..providers.notice import NoticeKind

#: How a notice ended that was taken back while training could go on: nothing had to be committed.
WITHDRAWN = "withdrawn"
#: How a command ended that nobody killed: after the signal for a command in which nobody is registered, or without any word.
SIGNALLED, BY_ITSELF = "signalled", "ended by itself"


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """What one training process made of the notice."""

    pid: int
    uid: int
    run_id: str
    name: str
    rank: int
    world: int
    #: From sending the notice to the hook having it.
    told: float | None
    step: int | None
    #: When its state stood still.
    gate: float | None
    first_byte: float | None
    committed: float | None
    bytes: int
    #: From the first byte to the marker, as the hook measured it.
    seconds: float | None
    url: str
    #: "full"; "partial-extras", which lacks what dead ranks had each of its own; "weights", which lacks the optimizer's
    #: moments; "" where it did not commit.
    level: str
    #: Why it committed less than everything as it stood, in its own words; "" where it did not.
    less: str
    #: Why it did not commit; "" where it did.
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one notice ended. Built by `core.preemption.Preemption.outcome`."""

    id: str
    #: Other notices that stood at the same time and ended here too.
    also: tuple[str, ...]
    kind: str
    source: str
    detail: str
    drill: bool
    #: Monotonic seconds.
    seen_at: float
    window: float
    left: float
    reserve: float
    #: The slowest session's.
    told: float | None
    #: The agreed step: None where nobody committed, or not all the same one.
    step: int | None
    bytes: int
    #: Bytes a second, all sessions together.
    rate: float | None
    #: When the last session's state stood still.
    gate: float | None
    first_byte: float | None
    #: When the last session had committed; None unless all did.
    committed: float | None
    #: The lowest that a session committed; "" unless all did.
    level: str
    #: Why that is less than everything as it stood; "" where it is not.
    less: str
    why: str
    #: Seconds that were left when the last session had committed; None where this machine stays.
    slack: float | None
    #: What was done, in order: "left when told", "TERM after the commit, then killed at the reserve", "withdrawn" …
    ended: str
    #: The command's, as `subprocess` has it. None where it did not end.
    returncode: int | None
    #: What spotguard makes of it: its own exit code. None where it goes on.
    code: int | None
    sessions: tuple[SessionOutcome, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether work is lost: the machine goes, and not all has been committed."""
        return self.committed is None and self.ended != WITHDRAWN and not self.ended_well

    @property
    def ended_well(self) -> bool:
        """Whether a command in which nobody was registered ended with 0. Its own save, if it makes one, has then succeeded as far
        as an agent can know."""
        return not self.sessions and self.returncode == 0 and self.ended in (SIGNALLED, BY_ITSELF)

    def tally(self) -> str:
        """How many of how many ranks have committed: of the job's, as far as they are on this machine."""
        done = sum(each.committed is not None for each in self.sessions)
        here, world = len(self.sessions), max((each.world for each in self.sessions), default=1)
        elsewhere = f" here ({world} in all)" if here < world else ""
        return f"{done} of {here} ranks{elsewhere}"

    def summary(self) -> dict[str, Any]:
        """Everything in plain JSON, without clocks."""
        body = dataclasses.asdict(self)
        del body["seen_at"]
        return {**_rounded(body), "ended_well": self.ended_well, "line": self.line()}

    def record(self, seen: datetime) -> dict[str, Any]:
        """The JSON record. `seen` is `seen_at` on the wall clock."""
        return {"seen": seen.isoformat(timespec="milliseconds"), **self.summary()}

    def line(self) -> str:
        """One line for a person."""
        what = "drill" if self.drill else f"{self.kind} notice"
        if self.kind == NoticeKind.PEER:
            what = f"another machine's {'drill' if self.drill else 'notice'} ({self.detail})"
        parts = [f"{what} from {self.source}: seen with {self.left:.1f} s left"]
        if self.told is not None:
            parts.append(f"told in {self.told * 1000:.0f} ms")
        step = "" if self.step is None else f"step {self.step}"
        if any(each.world > 1 for each in self.sessions):
            parts.append(f"{self.tally()} committed {step}".rstrip())
        elif step:
            parts.append(step)
        if self.bytes:
            parts.append(_amount(self.bytes) + (f" at {_amount(self.rate)}/s" if self.rate else ""))
        if self.first_byte is not None:
            parts.append(f"first byte after {self.first_byte:.2f} s")
        if self.committed is not None:
            which = as_level(self.level, " ")
            spare = "" if self.slack is None else f" with {self.slack:.1f} s to spare"
            less = f" ({self.less})" if self.less else ""
            parts.append(f"COMMITTED{which} after {self.committed:.2f} s{spare}{less}")
        elif self.failed:
            parts.append(f"NOT COMMITTED ({self.why})")
        elif self.ended_well:
            parts.append(f"the command ended with 0 ({self.why})")
        before = " before the commit" if self.committed is None and self.ended == WITHDRAWN else ""
        parts.append(f"{self.ended}{before}")
        if self.code is not None:
            parts.append(f"exit code {self.code}")
        return ", ".join(parts)


def as_level(level: str, before: str) -> str:
    """What was committed, where that is not everything; else ""."""
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


def _amount(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def seen_time(outcome: Outcome, monotonic: float, wall: float) -> datetime:
    """When the notice was first read, given one instant on both clocks."""
    return datetime.fromtimestamp(wall - (monotonic - outcome.seen_at), UTC)


def write(record: dict[str, Any], folder: Path, run_id: str) -> Path:
    """Put the record beside the socket: the newest alone in one file, and all of them in another.

    Raises:
        OSError: the folder is gone or full. The line in the log is then all there is.
    """
    data = json.dumps(record).encode() + b"\n"
    last = folder / f"{run_id}.outcome.json"
    scratch = folder / f".{run_id}.outcome.{os.getpid()}"
    try:
        _write_all(scratch, data, os.O_TRUNC)
        os.replace(scratch, last)
    except OSError:
        scratch.unlink(missing_ok=True)  # half a record is none
        raise
    _write_all(folder / f"{run_id}.outcomes.jsonl", data, os.O_APPEND)
    return last


def earlier(folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """The records of agents that were here before us under this name, oldest first, one at a time.

    All of them: who counts them must not come to less than the agent before did.
    """
    try:
        with open(folder / f"{run_id}.outcomes.jsonl", "rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # cut off by a full disk or a power cut
                if isinstance(record, dict):
                    yield record
    except OSError:
        return  # there was none


def _write_all(path: Path, data: bytes, flag: int) -> None:
    # 0600: a service's record names the sessions of several users.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flag, 0o600)
    try:
        while data:  # a disk that fills up, or a limit, takes a part first and refuses the rest (write(2))
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
