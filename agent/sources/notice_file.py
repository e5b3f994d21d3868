"""`--notice-file`: a file or a FIFO with which the operator of this machine ends a run. The type of the file decides.

A file is a notice while it exists, empty or with text in it (`read` below). On a FIFO each line is a notice, until a line
is `cancel`. No other user may forge a notice or prevent one (law 10). So only this user and root may write to the directory,
and the file must belong to this user or to root.
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

#: Bytes: the most that is read from a file, and kept of an unfinished line.
_MOST = 16 * 1024


class NoticeFile:
    """The file or FIFO at `path` as a `NoticeSource`."""

    # A poll of a file on a local disk costs three system calls, and an operator warns more than seconds ahead.
    interval = 1.0
    # No timeout of the agent can end a file system call: a dead file server may hold the call without limit.
    longest = 1.0
    withdraws = True

    def __init__(self, path: Path, clock: Clock) -> None:
        """Check the directory; nothing is opened.

        Raises:
            UsageError: another user could write there.
        """
        _check_folder(path)
        self.name = f"file {path}"
        self._path = path
        self._clock = clock
        self._euid = os.geteuid()
        self._standing: tuple[OperatorNotice, ...] = ()
        #: Monotonic seconds at which each standing notice was first read. Its window starts there.
        self._since: dict[OperatorNotice, float] = {}
        #: How often a FIFO has repeated a notice after its end.
        self._again: dict[OperatorNotice, int] = {}
        self._was_empty = False
        #: The FIFO's descriptor, open while the FIFO exists, so that a writer never waits for a poll. -1: none.
        self._fifo = -1
        self._rest = b""

    def poll(self) -> Sighting:
        try:
            health = self._look()
        except FileNotFoundError:
            self._let_go()
            health, self._standing, self._was_empty = SEEING, (), False
        except OSError as error:
            advice = "let this user read it, or pass another path"
            health = blind("forbidden", f"{self._path}: {error.strerror or error}", advice)
        return Sighting(health, tuple(self._notice(notice) for notice in self._remembered()))

    def close(self) -> None:
        self._let_go()

    # --- polling ---

    def _look(self) -> Health:
        info = os.stat(self._path)
        if stat.S_ISFIFO(info.st_mode):
            return self._look_at_fifo(info)
        self._let_go()
        # The file's type may change between two calls. So the open cannot hang, and the type is checked again.
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                advice = "give the path of a file or of a FIFO, or of one that is not there yet"
                return wrong_server(f"{self._path} is neither a file nor a FIFO", advice)
            if problem := self._doubt(info):
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
        # `echo … > file` creates the file before it writes. So an empty file counts only if the next poll finds it empty too.
        self._was_empty = not lines

    def _look_at_fifo(self, info: os.stat_result) -> Health:
        if problem := self._doubt(info):
            return problem
        if self._fifo < 0 or not os.path.samestat(os.fstat(self._fifo), info):
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
        """Take in one line of a FIFO.

        Equal lines are the same notice until its window is over. After that, or after a `cancel`, an equal line is a new
        notice. Otherwise a service, which outlives many notices, would never take the second one.
        """
        notice = read(line)
        if notice is not None and notice in self._since:
            over = self._clock.monotonic() >= self._since[notice] + notice.window
            if over or notice not in self._standing:
                del self._since[notice]
                self._again[notice] = self._again.get(notice, 0) + 1
                self._standing = tuple(one for one in self._standing if one != notice)
        self._standing = fold(self._standing, [line])

    def _doubt(self, info: os.stat_result) -> Health | None:
        if info.st_uid not in (0, self._euid):
            advice = "remove it: it may keep your own from being there"
            return wrong_server(f"{self._path} belongs to uid {info.st_uid}, and is not believed", advice)
        if info.st_mode & stat.S_IWOTH:
            return wrong_server(f"{self._path} can be written by everybody, and is not believed", "chmod o-w")
        return None

    def _let_go(self) -> None:
        if self._fifo >= 0:
            os.close(self._fifo)
        self._fifo, self._rest = -1, b""

    # --- notices ---

    def _remembered(self) -> tuple[OperatorNotice, ...]:
        now = self._clock.monotonic()
        self._since = {notice: self._since.get(notice, now) for notice in self._standing}
        self._again = {notice: count for notice, count in self._again.items() if notice in self._since}
        return self._standing

    def _notice(self, given: OperatorNotice) -> Notice:
        since = self._since[given]
        again = f"/{self._again[given]}" if given in self._again else ""
        return Notice(
            id=f"file/{given.kind}/{given.window:g}/{given.detail}{again}",
            kind=given.kind,
            source=self.name,
            deadline=since + given.window,
            seen_at=since,
            detail=given.detail,
            window=given.window,
        )


def _drain(fd: int) -> tuple[bytes, bool]:
    """Return the bytes in a FIFO, and whether no writer holds its other end now."""
    data = b""
    while len(data) < 4 * _MOST:  # the next poll reads the rest: a writer may never end
        try:
            piece = os.read(fd, _MOST)
        except BlockingIOError:
            return data, False
        if not piece:
            return data, True
        data += piece
    return data, False


def _check_folder(path: Path) -> None:
    """Check that only this user and root can create a file at `path`, or replace one of the directories above it.

    Raises:
        UsageError: another user can, or a directory does not exist.
    """
    folder = Path(os.path.realpath(path.parent))
    for at in (folder, *folder.parents):
        try:
            info = at.stat()
        except OSError as error:
            raise UsageError(
                f"--notice-file {path}: expected a path in an existing directory: {at}: {error.strerror}; make it first"
            ) from error
        theirs = info.st_uid not in (0, os.geteuid())
        # A gid that equals the owner's uid is that user's own group: most distributions make one for each user.
        shared = info.st_mode & stat.S_IWGRP and info.st_gid not in (0, info.st_uid)
        # In a sticky directory (/tmp) no user can move another user's file, but every user can create the file first.
        writable = shared or info.st_mode & stat.S_IWOTH
        if theirs or (writable and (at == folder or not info.st_mode & stat.S_ISVTX)):
            raise UsageError(
                f"--notice-file {path}: another user could put a file there, or keep yours away ({at} is not yours "
                "alone): use a directory of your own, or of root [SG109]"
            )


# The format of an operator's notice: a line of plain words, or of JSON. Any text is a notice; the reader never fails.
#
# `terminate 60 rack 7 loses its power` is a kind, seconds of warning, and text for the log; each part may be missing. The
# same notice as JSON: `{"kind": "terminate", "window": 60, "detail": "rack 7 loses its power"}`. `cancel` withdraws the
# notices before it.

#: Seconds of warning if the operator gives none. The run ends when everything is saved, so a longer window costs nothing.
WINDOW = 120.0
#: Kinds that an operator can announce. Each of them ends the run. (A drill is `spotguard drill`.)
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
#: The most notices that stand at the same time; the newest stay. A log used as a notice file, or a writer gone wild, must
#: not use up the agent's memory. (Seen: a thousand lines were a thousand notices, and each poll compared all pairs.)
KEPT = 32


@dataclass(frozen=True, slots=True)
class OperatorNotice:
    """One notice of an operator. Equal text is the same notice."""

    kind: NoticeKind = NoticeKind.OPERATOR
    window: float = WINDOW
    detail: str = ""


def fold(standing: tuple[OperatorNotice, ...], lines: list[str]) -> tuple[OperatorNotice, ...]:
    """Return the notices that stand after these lines, given those that stood before."""
    for line in lines:
        notice = read(line)
        if notice is None:
            standing = ()
        elif notice not in standing:
            standing = (*standing, notice)[-KEPT:]
    return standing


def read(line: str) -> OperatorNotice | None:
    """Return one line as a notice; None for `cancel`, which withdraws the notices before it."""
    text = line.strip()
    if text.lower() == _CANCEL:
        return None
    if text.startswith("{"):
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):  # then it is plain text
            body = None
        if isinstance(body, dict):
            return _from_json(body)
    return _from_words(text)


def whole(text: str) -> list[str]:
    """Return the lines of a file. JSON that spans several lines counts as one line."""
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
    # Only the first word after the kind: "rack 7 loses its power" is not a window of 7 s.
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
