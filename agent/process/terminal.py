"""The controlling terminal and who is in its foreground: job control as a shell does it, for one command.

The command has a process group of its own, so that it can be signalled as a whole, and Ctrl-C goes to the
terminal's foreground group only. So that group must become the foreground one, or the command would never hear
Ctrl-C and would be stopped (SIGTTIN) at its first look at the keyboard.

`/dev/tty` and not stdin: a command whose input is redirected is interrupted by Ctrl-C all the same.
"""

from __future__ import annotations

import logging
import os
import signal
import stat
import termios
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("spotguard.agent")


class Terminal:
    """The terminal that controls this session. Every method may be called from any thread.

    A terminal can go away at any time (a closed window, a lost ssh). Then there is no job to control any more,
    and no method here is worth an error: each says False, or does nothing.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._own = os.getpgrp()
        self._modes: list[int | list[bytes | int]] | None = None

    @classmethod
    def open(cls, path: str = "/dev/tty") -> Terminal | None:
        """The controlling terminal, or None where this session has none (a service, cron, most containers)."""
        try:
            return cls(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:  # ENXIO: no controlling terminal; ENOENT, EACCES: a bare container
            return None

    def holder(self) -> int:
        """The foreground process group, 0 where nobody can tell."""
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return 0

    def held_by_us(self) -> bool:
        return self.holder() == self._own

    def give(self, group: int) -> bool:
        """Make `group` the foreground, if we are it: a job in the background has nothing to give.

        Returns:
            Whether `group` is the foreground now.
        """
        if not self.held_by_us():
            return self.holder() == group
        self._modes = self._read_modes()
        return self._set(group)

    def take(self, group: int) -> None:
        """Become the foreground again, if `group` is it; what the user has put there since stays."""
        if self.holder() == group:
            self._set(self._own)

    def restore(self) -> None:
        """Put the line modes back that stood when the terminal was given away.

        For a command that was killed: it had no chance to leave raw mode, and a shell does this only for a job
        that it sees killed itself, while `spotguard run` exits with a code.
        """
        if self._modes is None or not self.held_by_us():
            return
        try:
            with _no_ttou():
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)
        except termios.error as error:
            logger.debug("the terminal's modes cannot be restored: %s", error)

    def close(self) -> None:
        os.close(self._fd)

    def _set(self, group: int) -> bool:
        try:
            with _no_ttou():
                os.tcsetpgrp(self._fd, group)
        except OSError as error:  # hung up, or the group has just ended
            logger.debug("the terminal cannot be given to group %d: %s", group, error)
            return False
        return True

    def _read_modes(self) -> list[int | list[bytes | int]] | None:
        try:
            return termios.tcgetattr(self._fd)
        except termios.error:
            return None


@contextmanager
def _no_ttou() -> Iterator[None]:
    """A background group that touches its terminal is stopped by SIGTTOU, unless the calling thread blocks it
    (POSIX tcsetpgrp). Blocked, not ignored: what is ignored stays ignored in every command started later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def feeds_a_pipe() -> bool:
    """Whether our output is somebody's input: `spotguard run … | less`.

    That somebody is in our process group. Were the terminal given to the command's group, a pager would be
    stopped at its first key. Such a job keeps the terminal, and passes on what the keyboard sends.
    """
    try:
        return stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:  # closed
        return False


def in_front() -> bool:
    """Whether our process group is the foreground of a terminal: its Ctrl-C is meant for us, too."""
    terminal = Terminal.open()
    if terminal is None:
        return False
    try:
        return terminal.held_by_us()
    finally:
        terminal.close()


def somebody_can_continue_us() -> bool:
    """Whether a shell stands over our process group: one that would see it stopped, and has `fg`.

    POSIX calls a group without one orphaned, and the kernel never stops such a group from the keyboard: nobody
    could wake it. Our group holds us and what started us without a group of its own (a script, make, env).
    """
    group, session = os.getpgrp(), os.getsid(0)
    pid = os.getppid()
    try:
        while pid > 0 and os.getpgid(pid) == group:
            pid = _parent_of(pid)
        return pid > 0 and os.getsid(pid) == session
    except (OSError, ValueError, IndexError):
        # An ancestor ended while we looked, or /proc is not there: then rather stay awake and on guard.
        return False


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in brackets, may hold spaces and brackets: the fields count from the last one (proc(5)).
        return int(file.read().rpartition(b")")[2].split()[1])
