"""`--notice-file`: a file that comes and goes, a FIFO that is written to, and users who may not meddle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.sources.notice_file import KEPT, NoticeFile
from spotguard.providers.errors import UsageError
from spotguard.providers.health import Sight
from spotguard.providers.notice import Notice, NoticeKind, Severity
from tests.fakes.clock import ManualClock

STRANGER = 61001
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")


class Looked:
    """A source at `path`, looked through once a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.source = NoticeFile(path, self.clock)

    def look(self) -> tuple[Notice, ...]:
        """What stands, with a source that sees."""
        self.clock.advance(1)
        sighting = self.source.poll()
        assert sighting.health.seeing, sighting.health
        return sighting.notices

    def problem(self) -> tuple[Sight, str]:
        self.clock.advance(1)
        health = self.source.poll().health
        assert health.advice
        return health.sight, health.detail


@pytest.fixture
def looked(folder: Path) -> Iterator[Looked]:
    looked = Looked(folder / "notice")
    yield looked
    looked.source.close()


def words(notices: tuple[Notice, ...]) -> list[tuple[str, float, str]]:
    return [(str(notice.kind), notice.window, notice.detail) for notice in notices]


# --- a file ---


def test_a_file_is_a_notice_while_it_is_there(looked: Looked) -> None:
    """Its time runs from when it was first seen."""
    assert looked.look() == ()
    looked.path.write_text("maintenance 60 rack 7")
    (notice,) = looked.look()
    now = looked.clock.monotonic()
    assert (notice.kind, notice.severity, notice.detail) == (
        NoticeKind.MAINTENANCE,
        Severity.TERMINAL,
        "rack 7",
    )
    assert (notice.deadline, notice.seen_at, notice.window) == (now + 60, now, 60)
    assert notice.source == f"file {looked.path}"
    assert looked.look() == (notice,)
    looked.path.unlink()
    assert looked.look() == ()
    looked.path.write_text("maintenance 60 rack 7")
    (again,) = looked.look()
    assert again.id == notice.id
    assert again.deadline == looked.clock.monotonic() + 60


def test_an_empty_file_is_a_notice_when_it_stays_empty(looked: Looked) -> None:
    """A shell makes the file first and writes then: in between it says nothing yet."""
    looked.path.touch()
    assert looked.look() == ()
    assert words(looked.look()) == [("operator", 120.0, "")]
    looked.path.write_text("")
    assert len(looked.look()) == 1
    looked.path.unlink()
    looked.look()
    looked.path.touch()
    assert looked.look() == ()
    looked.path.write_text("30")
    assert words(looked.look()) == [("operator", 30.0, "")]


def test_each_line_is_a_notice_and_cancel_takes_them_back(looked: Looked) -> None:
    looked.path.write_text("terminate\n\nstop 30\n")
    assert words(looked.look()) == [("terminate", 120.0, ""), ("stop", 30.0, "")]
    with looked.path.open("a") as file:
        file.write("cancel\n")
    assert looked.look() == ()
    assert len({notice.id for notice in looked.look()}) == 0


def test_a_file_is_there_before_the_start(folder: Path) -> None:
    """It is a notice at once: it stands."""
    (folder / "notice").write_text('{\n "kind": "stop",\n "window": 20\n}')
    looked = Looked(folder / "notice")
    assert words(looked.look()) == [("stop", 20.0, "")]


def test_bytes_that_are_no_words_are_a_notice(looked: Looked) -> None:
    looked.path.write_bytes(b"\xff\xfe\x00" * 10_000)
    assert len(looked.look()) == 1


def test_a_link_is_what_it_leads_to(looked: Looked) -> None:
    """Kubernetes puts a ConfigMap's files there by links."""
    target = looked.path.parent / "target"
    target.write_text("terminate 9")
    looked.path.symlink_to(target)
    assert words(looked.look()) == [("terminate", 9.0, "")]


def test_a_folder_in_its_place_is_no_notice_and_is_named(looked: Looked) -> None:
    looked.path.mkdir()
    sight, detail = looked.problem()
    assert sight is Sight.WRONG_SERVER
    assert "neither a file nor a FIFO" in detail
    looked.path.rmdir()
    assert looked.look() == ()


# --- a FIFO ---


def test_each_line_of_a_fifo_is_a_notice(looked: Looked) -> None:
    """Until one cancels them. A writer never waits for a look, and a line may come in pieces."""
    os.mkfifo(looked.path, 0o600)
    assert looked.look() == ()
    writer = os.open(looked.path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"terminate 60 ra")
    assert looked.look() == ()
    os.write(writer, b"ck 7\nstop\n")
    first = looked.look()
    assert words(first) == [("terminate", 60.0, "rack 7"), ("stop", 120.0, "")]
    assert looked.look() == first
    os.write(writer, b"cancel\n")
    assert looked.look() == ()
    os.write(writer, b"hibernate 0")
    os.close(writer)  # `printf` writes no newline
    assert words(looked.look()) == [("hibernate", 0.0, "")]
    looked.path.unlink()
    assert looked.look() == ()


def test_the_same_line_is_another_notice_when_the_time_of_the_first_is_over(looked: Looked) -> None:
    """Or when it was taken back in between, unseen. The agent settles a notice by its id: that one would be lost."""
    os.mkfifo(looked.path, 0o600)
    looked.look()
    writer = os.open(looked.path, os.O_WRONLY | os.O_NONBLOCK)

    def say(line: bytes) -> Notice:
        os.write(writer, line)
        (notice,) = looked.look()
        return notice

    first = say(b"terminate 60\n")
    assert say(b"terminate 60\n") == first
    looked.clock.advance(60)
    second = say(b"terminate 60\n")
    third = say(b"cancel\nterminate 60\n")
    assert len({notice.id for notice in (first, second, third)}) == 3
    for notice in (second, third):
        assert (notice.deadline - notice.seen_at, notice.window) == (60, 60)
    assert second.seen_at < third.seen_at == looked.clock.monotonic()
    os.close(writer)


@pytest.mark.parametrize("fifo", [True, False])
def test_a_writer_gone_wild_is_not_a_thousand_notices(looked: Looked, fifo: bool) -> None:
    """Nor is a log that somebody took for a notice file: the newest lines count, at every look."""
    if fifo:
        os.mkfifo(looked.path, 0o600)
        looked.look()
    writer = os.open(looked.path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
    os.write(writer, b"".join(b"%d x\n" % line for line in range(1000)))
    assert words(looked.look())[-1] == ("operator", 999.0, "x")
    assert len(looked.look()) == KEPT
    os.close(writer)


def test_another_fifo_in_its_place_is_opened_anew(looked: Looked) -> None:
    os.mkfifo(looked.path, 0o600)
    looked.look()
    looked.path.unlink()
    os.mkfifo(looked.path, 0o600)
    looked.look()
    looked.path.write_text("terminate\n")
    assert words(looked.look()) == [("terminate", 120.0, "")]


def test_a_line_without_an_end_is_cut(looked: Looked) -> None:
    """And is a notice: memory is not the price of a writer gone wild."""
    os.mkfifo(looked.path, 0o600)
    looked.look()
    writer = os.open(looked.path, os.O_WRONLY | os.O_NONBLOCK)
    for _ in range(4):
        os.write(writer, b"x" * 16_000)
        looked.look()
    (notice, *_) = looked.look()
    assert len(notice.detail) == 300
    os.close(writer)


def test_nothing_stays_open(looked: Looked) -> None:
    """Neither a file nor a FIFO, when it goes or when the source is closed."""
    before = os.listdir("/proc/self/fd")
    os.mkfifo(looked.path, 0o600)
    looked.look()
    looked.path.unlink()
    looked.look()
    looked.path.write_text("9")
    looked.look()
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- other users ---


@needs_root
def test_a_file_of_another_user_is_not_believed_and_is_named(looked: Looked) -> None:
    """A forged notice ends nothing; and that it keeps the operator's own away is seen."""
    looked.path.write_text("terminate 0")
    os.chown(looked.path, STRANGER, STRANGER)
    assert looked.source.poll().notices == ()
    sight, detail = looked.problem()
    assert sight is Sight.WRONG_SERVER
    assert f"belongs to uid {STRANGER}" in detail


@pytest.mark.parametrize("fifo", [True, False])
def test_a_notice_file_that_everybody_may_write_is_not_believed(looked: Looked, fifo: bool) -> None:
    if fifo:
        os.mkfifo(looked.path)
    else:
        looked.path.write_text("terminate")
    looked.path.chmod(0o622)
    assert looked.source.poll().notices == ()
    assert "written by everybody" in looked.problem()[1]


def test_a_notice_that_stands_is_not_taken_back_by_who_hides_it(looked: Looked) -> None:
    """Only a source that sees withdraws."""
    looked.path.write_text("terminate")
    (notice,) = looked.look()
    looked.path.chmod(0o666)
    sighting = looked.source.poll()
    assert not sighting.health.seeing
    assert sighting.notices == (notice,)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_in_which_everybody_may_put_things_is_refused(folder: Path, mode: int) -> None:
    """/tmp too: whoever is first there keeps the operator's file away."""
    open_folder = folder / "open"
    open_folder.mkdir()
    open_folder.chmod(mode)
    with pytest.raises(UsageError, match="another user could put a file there"):
        NoticeFile(open_folder / "notice", ManualClock())
    (open_folder / "own").mkdir()
    inside = open_folder / "own" / "notice"
    if mode == 0o1777:  # nobody can put another folder in its place
        NoticeFile(inside, ManualClock())
    else:
        with pytest.raises(UsageError, match="another user"):
            NoticeFile(inside, ManualClock())


@needs_root
def test_a_folder_in_which_a_group_may_put_things_is_refused(folder: Path) -> None:
    """Any of its members could link a file of ours there. A user's own group, which has the user's number, is no group."""
    team = folder / "team"
    team.mkdir()
    team.chmod(0o775)
    NoticeFile(team / "notice", ManualClock())
    os.chown(team, -1, STRANGER)
    with pytest.raises(UsageError, match="not yours alone"):
        NoticeFile(team / "notice", ManualClock())


@needs_root
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    with pytest.raises(UsageError, match="not yours alone"):
        NoticeFile(theirs / "notice", ManualClock())


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--notice-file .*/no/notice: expected a path in an existing directory"
    ):
        NoticeFile(folder / "no" / "notice", ManualClock())
