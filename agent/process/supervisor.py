"""The guarded command: started, signalled as a group, stopped and continued with its terminal, and reaped.

The command keeps our session, our terminal and our three streams untouched; it gets a process group of its own,
whose number is its pid. Whatever it inherits is what it would have had without us: open descriptors (a shell's
`<(…)`), the signal mask, ignored signals. Of those not SIGTERM and SIGCONT, which we must hear (`signals`; what
has a handler here is at its default there), SIGCHLD, without which we would lose its status, and SIGPIPE and
SIGXFSZ, which Python ignores in every process of its own.

**Who waits.** One thread, in `waitid`, looks (WNOWAIT) before it takes. The ended command stays a zombie until
`close` or the next `start`: as long as it is there the kernel gives its number to nobody, so a signal to the
group can never hit a stranger, and what the command left running can still be killed. As PID 1 we are also the
parent of every orphan of the container: those are reaped by the same thread, one by one, and the command's own
status can not be lost among them.

**Descendants.** When the command ends by itself, what it left in the background stays, as under a shell. Who
wants the group gone (a preemption) calls `kill`, which works after the command's own end too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from ..events import CommandEnded, Event, GroupSeen
from . import proctree
from .program import CommandError, find, refusal
from .terminal import Terminal, feeds_a_pipe, somebody_can_continue_us

logger = logging.getLogger("spotguard.agent")

#: Signals by which a terminal stops a background group that reads from it or writes to it.
_WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)

__all__ = ["CommandError", "Supervisor", "take_status"]


class Supervisor:
    """One command at a time: `start`, then `signal` and `kill` as wanted, `close` at the end.

    Called by one thread. `post` is called by the reaper, once for each `start`, when the command has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        post: Callable[[Event], None],
        adopts: bool | None = None,
        terminal: Callable[[], Terminal | None] = Terminal.open,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            command: the program and its arguments.
            env: the command's whole environment.
            post: takes the events.
            adopts: whether other people's orphans become our children. By default: as PID 1 they do.
            terminal: finds the controlling terminal.
        """
        self._command = list(command)
        self._env = dict(env)
        self._post = post
        self._adopts = os.getpid() == 1 if adopts is None else adopts
        self._terminal = terminal()
        self._pid = 0
        self._returncode: int | None = None
        #: It was asked to end, so it must not stay stopped: a stopped process does not hear SIGTERM.
        self._asked_to_end = False
        #: It was started by another agent, which was killed.
        self._adopted = False
        self._early: list[int] = []
        self._reaper: threading.Thread | None = None

    def start(self) -> int:
        """Start the command (again, after its end) and return its pid, which is its group's number too.

        Raises:
            CommandError: there is no such command, or it cannot be executed. Nothing was started.
        """
        self._release()
        if self._pid:
            raise RuntimeError(f"the command (pid {self._pid}) still runs: it is started again after its end")
        # A parent that ignored SIGCHLD has left it so for us, and the kernel would then keep no status for us.
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._pid = self._spawn()
        self._returncode, self._asked_to_end, self._adopted = None, False, False
        if self._terminal is not None and not feeds_a_pipe():
            self._terminal.give(self._pid)
        self._reaper = threading.Thread(
            target=self._reap, args=(self._pid,), name="spotguard-reaper", daemon=True
        )
        self._reaper.start()
        early, self._early = self._early, []
        for signum in early:
            self.signal(signum)
        return self._pid

    def adopt(self, pid: int) -> None:
        """Stand over a command that another agent started, until it ends; the next `start` comes after that. It is not our
        child: its end is told with 0, whatever its code was.

        Args:
            pid: 0 if the command has ended and only other processes of it are there.
        """
        self._pid, self._adopted = pid, True
        self._reaper = threading.Thread(target=self._await, args=(pid,), name="spotguard-reaper", daemon=True)
        self._reaper.start()

    def signal(self, signum: int) -> None:
        """Send `signum` to the whole group. Before `start` it is kept, and sent then."""
        if not self._pid:
            if not self._adopted:
                self._early.append(signum)
            return
        keeps = self._adopted or feeds_a_pipe()
        if signum == signal.SIGCONT and self._terminal is not None and not keeps:
            self._terminal.give(self._pid)  # `fg`: our shell has just made us the foreground
        if signum == signal.SIGTERM:
            self._asked_to_end = True  # before it is sent: whichever way a stop falls, one of us wakes it
        self._send(signum)
        if signum == signal.SIGTERM:
            # Nothing to a process that runs; systemd does the same (systemd.kill(5)).
            self._send(signal.SIGCONT)

    def kill(self) -> None:
        """End the whole group now, also what is left of it when the command itself is gone. While it lives, all its
        descendants too: torchrun's workers have sessions of their own, and may not have registered yet."""
        if not self._pid:
            return
        try:
            descendants = proctree.below(self._pid)  # before: who loses its parent is found no longer
        finally:
            self._send(signal.SIGKILL)
        proctree.kill(descendants)

    @property
    def record(self) -> str:
        """The command's, for the agent after this one (`proctree.record_of`)."""
        return proctree.record_of(self._pid, self._env)

    @property
    def command(self) -> list[str]:
        return list(self._command)

    def change(self, command: Sequence[str]) -> None:
        """The next `start` starts this one."""
        self._command = list(command)

    @property
    def pid(self) -> int:
        """The command's, also after its end; 0 where none was started."""
        return self._pid

    def look(self, orphaned: frozenset[int] = frozenset()) -> GroupSeen:
        """Who but the command itself is in its group, and of the command in one of these. Asked after the command's end, when
        its own zombie answers to every signal, so that `killpg(…, 0)` tells nothing."""
        group, left = proctree.look(self._pid, orphaned, self._env)
        return GroupSeen(self._pid, group, left, orphaned)

    def signal_orphans(self, signum: int, groups: frozenset[int]) -> None:
        """Send `signum` to what the command has left behind in these groups."""
        proctree.send(signum, groups, self._env)

    def rest(self) -> None:
        """The command has ended and nothing follows yet: what the keyboard sends now is meant for us."""
        if self._terminal is not None:
            self._terminal.take(self._pid)
            if self._returncode is not None and self._returncode < 0:
                self._terminal.restore()

    def close(self) -> None:
        """Take the terminal back and reap. A command that still runs is left running: ending it is a decision."""
        self._release()
        if self._terminal is not None and not self._pid:  # else the reaper still looks at it
            self._terminal.close()
            self._terminal = None

    # --- starting and letting go --------------------------------------------------------------------------

    def _spawn(self) -> int:
        program = find(self._command[0], self._env)
        try:
            # posix_spawn and not subprocess: it neither closes what the shell opened for the command nor
            # copies this process's memory. SIGPIPE and SIGXFSZ: Python ignores them, the command should not.
            return os.posix_spawn(
                program,
                self._command,
                self._env,
                setpgroup=0,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError as error:
            raise refusal(self._command[0], program, error) from error

    def _release(self) -> None:
        """Give up the ended command: its terminal, its zombie, its thread."""
        if not self._pid:
            return
        if self._terminal is not None:
            self._terminal.take(self._pid)
        if self._returncode is None:
            return
        if self._reaper is not None:
            self._reaper.join()  # it has posted, so it is at its last line
            self._reaper = None
        if self._terminal is not None and self._returncode < 0:
            self._terminal.restore()
        if not self._adopted:
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG)
        self._pid = 0
        if self._adopts:
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Those that ended after the command did, when nobody waited."""
        try:
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                pass
        except ChildProcessError:
            pass  # no child is left

    # --- the reaper's thread ------------------------------------------------------------------------------

    def _await(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            fd = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll()
            finally:
                os.close(fd)
        self._returncode = 0
        self._post(CommandEnded(pid, 0))

    def _reap(self, pid: int) -> None:
        kind, number = (os.P_ALL, 0) if self._adopts else (os.P_PID, pid)
        while True:
            seen = os.waitid(kind, number, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if seen is None:  # only WNOHANG gives None: this is for the type checker
                continue
            ended = seen.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED)
            if ended and seen.si_pid == pid:
                self._returncode = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
                self._post(CommandEnded(pid, self._returncode))
                return
            if take_status(seen.si_pid, os.WEXITED if ended else os.WSTOPPED) and seen.si_pid == pid:
                self._stop_with_it(pid, seen.si_status)

    def _stop_with_it(self, group: int, signum: int) -> None:
        """The command was stopped: our shell should see its job stopped, unless it is nobody's to continue."""
        terminal = self._terminal
        wants = signum in _WANTS_TERMINAL
        if self._asked_to_end:
            self._send(signal.SIGCONT)
        elif terminal is None:
            pass  # by `kill -STOP`, for reasons of its own; there is no keyboard, and we stay on guard
        elif wants and terminal.give(group):
            # It looked at the terminal before it was given, or is a job that `fg` brought to the front.
            self._send(signal.SIGCONT)
        elif not wants and terminal.holder() != group and not terminal.held_by_us():
            pass  # stopped behind the terminal's back: no shell waits for it
        elif somebody_can_continue_us():
            terminal.take(group)
            # Our whole group, so that a script around us or a `| tee` beside us stops too. SIGCONT comes back
            # by `fg` or `bg`, as an event, and goes on to the command through `signal`.
            os.killpg(0, signal.SIGSTOP)
        elif signum != signal.SIGSTOP:
            self._send(signal.SIGCONT)  # as the kernel does for an orphaned group: Ctrl-Z means nothing here

    def _send(self, signum: int) -> None:
        try:
            os.killpg(self._pid, signum)
        except PermissionError:
            name = signal.Signals(signum).name
            logger.warning("%s cannot be sent to the command: it runs as another user (sudo?)", name)
        except ProcessLookupError:
            logger.debug("group %d is gone", self._pid)


def take_status(pid: int, what: int) -> bool:
    """Take what was seen of a child, so that the next look shows something new. False: it is out of date already."""
    try:
        return os.waitid(os.P_PID, pid, what | os.WNOHANG) is not None
    except ChildProcessError:
        # Seen stopped, killed since: a zombie is no child for who asks for stopped ones (seen, 1 in 100).
        return False
