"""The controlling terminal and its foreground group: job control as in a shell, for one command.

The command has its own process group, so that the agent can signal it as a whole. Ctrl-C goes to the terminal's foreground
group only. So the command's group must become the foreground group. Otherwise the command would never get Ctrl-C, and its
first read from the keyboard would stop it (SIGTTIN).

The agent opens `/dev/tty` instead of using stdin, because Ctrl-C also interrupts a command whose input is redirected.
"""

from __future__ import annotations

import logging
import os
import signal
import stat
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from ..ipc.process_stat import stat_of

logger = logging.getLogger("spotguard.agent")


class Terminal:
    """The terminal that controls this session. Any thread may call every method.

    A terminal can go away at any time (a closed window, a lost ssh). Then there is no job to control any more, so no method
    raises: each returns False, or does nothing.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._own = os.getpgrp()
        self._modes: list[int | list[bytes | int]] | None = None

    @classmethod
    def open(cls, path: str = "/dev/tty") -> Terminal | None:
        """Open the controlling terminal; None if this session has none (a service, cron, most containers)."""
        try:
            return cls(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:  # ENXIO: no controlling terminal; ENOENT, EACCES: a bare container
            return None

    def holder(self) -> int:
        """Return the foreground process group; 0 if it is unknown."""
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return 0

    def held_by_us(self) -> bool:
        return self.holder() == self._own

    def give(self, group: int) -> bool:
        """Make `group` the foreground, if the agent's group is it. A background job cannot give the terminal away.

        Returns:
            Whether `group` is the foreground now.
        """
        if not self.held_by_us():
            return self.holder() == group
        self._modes = self._read_modes()
        return self._set(group)

    def take(self, group: int) -> None:
        """Make the agent's group the foreground again, if `group` is it. A job that the user put there since stays."""
        if self.holder() == group:
            self._set(self._own)

    def restore(self) -> None:
        """Restore the line modes from before the terminal was given away.

        A killed command had no chance to leave raw mode. A shell restores the modes only if it sees its own job killed, but
        `spotguard run` exits with a code.
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
    """Block SIGTTOU in the calling thread. Otherwise it stops a background group that changes its terminal (POSIX tcsetpgrp).

    The signal is blocked and not ignored: every command started later would inherit an ignored signal.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def feeds_a_pipe() -> bool:
    """Return whether the agent's output goes into a pipe: `spotguard run … | less`.

    The reader of the pipe is in the agent's process group. If the command's group had the terminal, a pager would be stopped
    at its first key. So in such a job the agent keeps the terminal, and passes the keyboard's signals on.
    """
    try:
        return stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:  # closed
        return False


def in_front() -> bool:
    """Return whether the agent's process group is the foreground of a terminal. Its Ctrl-C is then for the agent, too."""
    terminal = Terminal.open()
    if terminal is None:
        return False
    try:
        return terminal.held_by_us()
    finally:
        terminal.close()


def somebody_can_continue_us() -> bool:
    """Return whether a shell controls the agent's process group: it would see the group stopped, and has `fg`.

    POSIX calls a group without such a shell orphaned. The kernel never stops an orphaned group from the keyboard, because
    nothing could continue it. The agent's group also holds the programs that started the agent without a group of its own (a
    script, make, env).
    """
    group, session = os.getpgrp(), os.getsid(0)
    pid = os.getppid()
    try:
        while pid > 0 and os.getpgid(pid) == group:
            process = stat_of(pid)
            pid = process.parent if process is not None else 0
        return pid > 0 and os.getsid(pid) == session
    except OSError:
        # An ancestor ended meanwhile, or /proc is missing. It is safer to stay awake and on guard then.
        return False
