"""`--notice-file`: a file or a FIFO by which whoever runs this machine has a run end. What lies there decides which.

A file is a notice for as long as it is there, empty or with words in it (`read` below). A FIFO gives a notice with
each line, until a line says `cancel`. No other user may forge a notice or keep one away (law 10): the folder is one
in which only we and root can put things, and what lies there is believed only where it is ours or root's.
"""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...providers.clock import WEEK, Clock
from ...providers.errors import UsageError
from ...providers.health import SEEING, Health, blind, wrong_server
from ...providers.notice import Notice, NoticeKind, Sighting
from ...providers.text import TEXT, clip

#: Read of a file, or kept of a line that has not come to its end.
_MOST = 16 * 1024


class NoticeFile:
    """What lies at `path` as a `NoticeSource`."""

    # A file on a local disk costs three system calls a look, and an operator's warning is not of seconds.
    interval = 1.0
    # No timeout of ours ends a call of a file system: a dead file server holds it for as long as it likes.
    longest = 1.0
    withdraws = True

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises `UsageError` where another user could put something there."""
        _check_folder(path)
        self.name = f"file {path}"
        self._path = path
        self._clock = clock
        self._euid = os.geteuid()
        self._standing: tuple[OperatorNotice, ...] = ()
        #: When each of those was first read: its time runs from then on.
        self._since: dict[OperatorNotice, float] = {}
        #: How often a FIFO has said it anew.
        self._again: dict[OperatorNotice, int] = {}
        self._was_empty = False
        #: The FIFO, open for as long as it lies there, so that nobody who writes to it has to wait for a look.
        self._fifo = -1
        self._rest = b""

    def poll(self) -> Sighting:
        try:
            health = self._look()
        except FileNotFoundError:
            self._let_go()
            health, self._standing, self._was_empty = SEEING, (), False
        except OSError as error:
            advice = "let this user read it, or say another path"
            health = blind("forbidden", f"{self._path}: {error.strerror or error}", advice)
        return Sighting(health, tuple(self._notice(said) for said in self._remembered()))

    def close(self) -> None:
        self._let_go()

    # --- looking ---

    def _look(self) -> Health:
        found = os.stat(self._path)
        if stat.S_ISFIFO(found.st_mode):
            return self._look_at_fifo(found)
        self._let_go()
        # What it is may change between two calls: opened so that nothing can hang, then looked at again.
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                advice = "give the path of a file or of a FIFO, or of one that is not there yet"
                return wrong_server(f"{self._path} is neither a file nor a FIFO", advice)
            if problem := self._doubt(found):
                return problem
            data = os.read(fd, _MOST)
        finally:
            os.close(fd)
        self._read_file(data)
        return SEEING

    def _read_file(self, data: bytes) -> None:
        lines = whole(data.decode(errors="replace"))
        if lines:
            self._standing = fold((), lines)
        elif self._was_empty:
            self._standing = (OperatorNotice(),)
        # `echo … > file` makes it first and writes then: an empty one is believed when it still is at the next look.
        self._was_empty = not lines

    def _look_at_fifo(self, found: os.stat_result) -> Health:
        if problem := self._doubt(found):
            return problem
        if self._fifo < 0 or not os.path.samestat(os.fstat(self._fifo), found):
            self._let_go()
            self._standing = ()
            self._fifo = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        data, ended = _drain(self._fifo)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if (ended or len(self._rest) > _MOST) and self._rest:  # `printf` writes no newline
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line.strip():
                self._hear(line.decode(errors="replace"))
        return SEEING

    def _hear(self, line: str) -> None:
        """One line of a FIFO. The same words are the same notice for as long as its time runs. After that, or when they
        were taken back, they are another: a service, which outlives many, would never hear the second."""
        said = read(line)
        if said is not None and said in self._since:
            over = self._clock.monotonic() >= self._since[said] + said.window
            if over or said not in self._standing:
                del self._since[said]
                self._again[said] = self._again.get(said, 0) + 1
                self._standing = tuple(one for one in self._standing if one != said)
        self._standing = fold(self._standing, [line])

    def _doubt(self, found: os.stat_result) -> Health | None:
        if found.st_uid not in (0, self._euid):
            advice = "remove it: it may keep your own from being there"
            return wrong_server(f"{self._path} belongs to uid {found.st_uid}, and is not believed", advice)
        if found.st_mode & stat.S_IWOTH:
            return wrong_server(f"{self._path} can be written by everybody, and is not believed", "chmod o-w")
        return None

    def _let_go(self) -> None:
        if self._fifo >= 0:
            os.close(self._fifo)
        self._fifo, self._rest = -1, b""

    # --- telling ---

    def _remembered(self) -> tuple[OperatorNotice, ...]:
        now = self._clock.monotonic()
        self._since = {said: self._since.get(said, now) for said in self._standing}
        self._again = {said: count for said, count in self._again.items() if said in self._since}
        return self._standing

    def _notice(self, said: OperatorNotice) -> Notice:
        since = self._since[said]
        again = f"/{self._again[said]}" if said in self._again else ""
        return Notice(
            id=f"file/{said.kind}/{said.window:g}/{said.detail}{again}",
            kind=said.kind,
            source=self.name,
            deadline=since + said.window,
            seen_at=since,
            detail=said.detail,
            window=said.window,
        )


def _drain(fd: int) -> tuple[bytes, bool]:
    """What lies in a FIFO, and whether nobody holds its other end now."""
    data = b""
    while len(data) < 4 * _MOST:  # the rest at the next look: who writes without an end is not waited for
        try:
            piece = os.read(fd, _MOST)
        except BlockingIOError:
            return data, False
        if not piece:
            return data, True
        data += piece
    return data, False


def _check_folder(path: Path) -> None:
    """Whether only we and root can put something at `path`, or put another folder in its folder's place."""
    folder = Path(os.path.realpath(path.parent))
    for at in (folder, *folder.parents):
        try:
            found = at.stat()
        except OSError as error:
            raise UsageError(
                f"--notice-file {path}: expected a path in a folder that is there: {at}: {error.strerror}; make it first"
            ) from error
        theirs = found.st_uid not in (0, os.geteuid())
        # A group's number that is its owner's is that user's own group, as most distributions make one for each.
        shared = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, found.st_uid)
        # In a sticky folder (/tmp) nobody can move what is another's, but everybody can be the first to put it there.
        writable = shared or found.st_mode & stat.S_IWOTH
        if theirs or (writable and (at == folder or not found.st_mode & stat.S_ISVTX)):
            raise UsageError(
                f"--notice-file {path}: another user could put a file there, or keep yours away ({at} is not yours "
                "alone): use a folder of your own, or of root"
            )


# What an operator writes to have a run end: a line of plain words, or of JSON. Total: whatever it is, it is a notice.
#
# `terminate 60 rack 7 loses its power` is a kind, seconds of warning, and words for the log; each may be missing. The
# same as JSON: `{"kind": "terminate", "window": 60, "detail": "rack 7 loses its power"}`. `cancel` takes back what came
# before it.

#: Seconds that an operator leaves where none are said. When all is saved the run ends, so that more cost nothing.
WINDOW = 120.0
#: What an operator can announce: each is an end. (A drill is `spotguard drill`.)
_KINDS = (
    NoticeKind.OPERATOR,
    NoticeKind.TERMINATE,
    NoticeKind.STOP,
    NoticeKind.HIBERNATE,
    NoticeKind.PREEMPT,
    NoticeKind.REBOOT,
    NoticeKind.REDEPLOY,
    NoticeKind.MAINTENANCE,
)
_CANCEL = "cancel"
#: So many stand at the same time, the newest: a log that is taken for a notice file, or a writer gone wild, must not cost
#: the agent its memory. (A thousand lines were a thousand notices, compared each with each at every look: seen.)
KEPT = 32


@dataclass(frozen=True, slots=True)
class OperatorNotice:
    """One notice of an operator. Equal words are the same notice."""

    kind: NoticeKind = NoticeKind.OPERATOR
    window: float = WINDOW
    detail: str = ""


def fold(standing: tuple[OperatorNotice, ...], lines: list[str]) -> tuple[OperatorNotice, ...]:
    """What stands after these lines, given what stood before."""
    for line in lines:
        said = read(line)
        if said is None:
            standing = ()
        elif said not in standing:
            standing = (*standing, said)[-KEPT:]
    return standing


def read(line: str) -> OperatorNotice | None:
    """One line as a notice; None: it takes back those before it."""
    text = line.strip()
    if text.lower() == _CANCEL:
        return None
    if text.startswith("{"):
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):  # then they are words
            body = None
        if isinstance(body, dict):
            return _from_json(body)
    return _from_words(text)


def whole(text: str) -> list[str]:
    """The lines of a file: JSON that goes over several is one."""
    if text.lstrip().startswith("{"):
        try:
            json.loads(text)
            return [text]
        except (ValueError, RecursionError):
            pass
    return [line for line in text.splitlines() if line.strip()]


def _from_words(text: str) -> OperatorNotice:
    words = text.split()
    kind, window = NoticeKind.OPERATOR, WINDOW
    if words and words[0].lower() in _KINDS:
        kind = NoticeKind(words.pop(0).lower())
    # Only in this place: "rack 7 loses its power" does not end in 7 seconds.
    if words and (seconds := _seconds(words[0])) is not None:
        window = seconds
        del words[0]
    return OperatorNotice(kind, window, clip(" ".join(words), TEXT))


def _from_json(body: dict[str, Any]) -> OperatorNotice:
    kind, window, detail = body.get("kind"), body.get("window"), body.get("detail")
    known = isinstance(kind, str) and kind.lower() in _KINDS
    seconds = _seconds(str(window)) if isinstance(window, (int, float, str)) else None
    return OperatorNotice(
        NoticeKind(str(kind).lower()) if known else NoticeKind.OPERATOR,
        WINDOW if seconds is None else seconds,
        clip(detail, TEXT) if isinstance(detail, str) else "",
    )


def _seconds(word: str) -> float | None:
    try:
        value = float(word.removesuffix("s"))
    except ValueError:
        return None
    return min(max(value, 0.0), WEEK) if math.isfinite(value) else None
