"""The supervisor of the guarded command: it starts the command, signals its group, stops and continues it, and reaps it.

The command keeps the agent's session, terminal and three streams. It gets its own process group, whose number is its pid.
It inherits everything that it would have without the agent: open descriptors (a shell's `<(…)`), the signal mask and
ignored signals. Five signals are never inherited as ignored. The agent itself must receive SIGTERM and SIGCONT (`signals`: a
signal with a handler here is at its default in the command). Without SIGCHLD the agent would lose the command's status.
Python ignores SIGPIPE and SIGXFSZ in every process of its own.

**The reaper.** One thread waits in `waitid`, and peeks at a status (WNOWAIT) before it takes the status. The ended command
stays a zombie until `close` or the next `start`. Until then the kernel does not reuse its number. So a signal to the group
can never reach a foreign process, and can still kill the processes that the command left running. As PID 1 the agent is also
the parent of every orphan of the container. The same thread reaps the orphans one by one, so that the command's own status
cannot be lost among them.

**Descendants.** When the command ends by itself, its background processes stay, as under a shell. A preemption calls `kill`
to end the group, which works after the command's own end too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence, Set

from ...hooks.ipc.failure_classes import LAUNCH, RECOVERED, SKIP_STEPS, rules_text
from ..actions import Launch
from ..config.options import LAST_FAILURE, LOADER_WORKERS
from ..events import CommandEnded, Event, GroupSeen, Signalled
from . import proctree, torchrun
from .memory.kills import MemoryKills
from .program import NOT_EXECUTABLE, CommandError, find, refusal
from .terminal import Terminal, feeds_a_pipe, somebody_can_continue_us

logger = logging.getLogger("spotguard.agent")

#: Signals by which a terminal stops a background group that reads from it or writes to it.
_WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)

#: Signals that schedulers and launchers send before a time limit, and a session that closes. Their default is the end, without
#: a save.
_BEFORE_AN_END = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP)

__all__ = ["CommandError", "Supervisor", "take_status"]


class Supervisor:
    """The supervisor of one command at a time: `start`, then `signal` and `kill` as needed, `close` at the end.

    One thread calls these methods. The reaper calls `post` once for each `start`, when the command has ended.
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
            adopts: whether foreign orphans become the agent's children. By default they do if the agent is PID 1.
            terminal: opens the controlling terminal.
        """
        self._command = list(command)
        self._env = dict(env)
        self._loader_workers = env.get(LOADER_WORKERS, "")
        self._post = post
        self._adopts = os.getpid() == 1 if adopts is None else adopts
        self._terminal = terminal()
        self._pid = 0
        self._returncode: int | None = None
        #: The command got SIGTERM, so it must not stay stopped: a stopped process does not act on SIGTERM.
        self._asked_to_end = False
        #: Another agent, which was killed, started the command.
        self._adopted = False
        self._early: list[int] = []
        self._memory_kills = MemoryKills()
        self._reaper: threading.Thread | None = None

    def start(self) -> int:
        """Start the command (again, after its end) and return its pid, which is its group's number too.

        Raises:
            CommandError: there is no such command, or it cannot be executed. Nothing was started.
        """
        self._release()
        if self._pid:
            raise RuntimeError(f"the command (pid {self._pid}) still runs: it is started again after its end")
        # The agent inherits an ignored SIGCHLD from its parent. The kernel would then keep no status of the command.
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._pid = self._spawn()
        self._returncode, self._asked_to_end, self._adopted = None, False, False
        self._memory_kills.begin()
        if self._terminal is not None and not feeds_a_pipe():
            self._terminal.give(self._pid)
        self._reaper = threading.Thread(
            target=self._reap, args=(self._pid,), name="spotguard-reaper", daemon=True
        )
        try:
            self._reaper.start()
        except (
            RuntimeError
        ) as error:  # a limit of processes counts threads; nobody would see the command's end
            self.kill()
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
            self._reaper, self._returncode = None, -signal.SIGKILL
            self._release()
            raise CommandError(
                f"the command cannot be guarded: {error}; raise the limit of processes (ulimit -u, a pod's pids limit)",
                NOT_EXECUTABLE,
            ) from error
        early, self._early = self._early, []
        for signum in early:
            self.signal(signum)
        return self._pid

    def adopt(self, pid: int) -> None:
        """Supervise a command that another agent started, until it ends. The next `start` comes after that.

        The command is not a child of this agent. So its end is posted with code 0, whatever its code was.

        Args:
            pid: the command's pid; 0 if the command has ended and only other processes of it live.
        """
        self._pid, self._adopted = pid, True
        self._reaper = threading.Thread(target=self._await, args=(pid,), name="spotguard-reaper", daemon=True)
        self._reaper.start()

    def signal(self, signum: int) -> None:
        """Send `signum` to the whole group. A signal before `start` is kept, and sent at `start`."""
        if not self._pid:
            if not self._adopted:
                self._early.append(signum)
            return
        keeps = self._adopted or feeds_a_pipe()
        if signum == signal.SIGCONT and self._terminal is not None and not keeps:
            self._terminal.give(self._pid)  # `fg`: the shell has just made the agent the foreground
        if signum == signal.SIGTERM:
            # Set before the signal is sent. Whenever a stop comes, this thread or the reaper then continues the command.
            self._asked_to_end = True
        self._send(signum)
        if signum == signal.SIGTERM:
            # SIGCONT does nothing to a running process. systemd sends it too (systemd.kill(5)).
            self._send(signal.SIGCONT)

    def pass_on(self, signum: int, trained: Set[int] = frozenset()) -> None:
        """Send a signal that was sent to this process. One that announces an end (SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP) goes only to
        processes of the group that handle it.

        It comes back as an event if none does, or if one of the training processes in `trained` does not.
        """
        if signum not in _BEFORE_AN_END or not self._pid:
            self.signal(signum)
        elif not proctree.send_handled(signum, self._pid, trained):
            self._post(Signalled(signum, unhandled=True))

    def kill(self) -> None:
        """Kill the whole group now, also the rest of it after the command's end.

        While the command lives, kill all its descendants too: torchrun's workers have sessions of their own, and may not
        have registered yet.
        """
        if not self._pid:
            return
        try:
            descendants = proctree.below(self._pid)  # before the kill: orphans are no descendants any more
        finally:
            self._send(signal.SIGKILL)
        proctree.kill(descendants)

    @property
    def record(self) -> str:
        """The command's record for the next agent (`proctree.record_of`)."""
        return proctree.record_of(self._pid, self._env)

    def move(self, gone: frozenset[str], meet: str) -> str:
        """Have the next `start` meet the job's other machines at `meet`, if it met them on the machine that is gone.

        Returns:
            What to log; "" if they meet elsewhere.
        """
        if host := torchrun.static_on(self._command, self._env, gone):
            return (
                f"torchrun's static rendezvous is on {host}, the machine that goes, and cannot move: all wait for a machine with that "
                "address and node rank 0; use --rdzv-backend c10d with --rdzv-endpoint instead of --master-addr, to continue without it"
            )
        before = self._command, self._env
        self._command, self._env = torchrun.moved(*before, gone, meet)
        moved = before != (self._command, self._env)
        return f"the rendezvous was on the machine that goes: it is on {meet} from now on" if moved else ""

    def hint(self, launch: Launch) -> None:
        """Set what the next `start` is to know: behind which failure it comes, what `--recover` did so far, and what to avoid."""
        hints = {
            LAST_FAILURE: launch.failure,
            LAUNCH: secrets.token_hex(8),
            LOADER_WORKERS: "0" if launch.failure == "loader-worker" else self._loader_workers,
            RECOVERED: rules_text(launch.rules),
            SKIP_STEPS: launch.skip,
        }
        for name, value in hints.items():
            self._env.pop(name, None)
            if value:
                self._env[name] = value

    @property
    def pid(self) -> int:
        """The command's pid, also after its end; 0 if no command was started."""
        return self._pid

    def look(self, orphaned: frozenset[int] = frozenset()) -> GroupSeen:
        """Return whether other processes live in the command's group, or were left behind by these training processes.

        The loop calls this after the command's end. `killpg(…, 0)` cannot answer then, because the command's own zombie
        accepts every signal.
        """
        group, left_behind = proctree.look(self._pid, orphaned, self._env)
        return GroupSeen(self._pid, group, left_behind, orphaned)

    def signal_orphans(self, signum: int, groups: frozenset[int]) -> None:
        """Send `signum` to the processes that the command left behind in these groups."""
        proctree.send(signum, groups, self._env)

    def rest(self) -> None:
        """Take the terminal back: the command has ended, no start follows yet, and the keyboard's signals are for the agent."""
        if self._terminal is not None:
            self._terminal.take(self._pid)
            if self._returncode is not None and self._returncode < 0:
                self._terminal.restore()

    def close(self) -> None:
        """Take the terminal back and reap. A command that still runs stays: only the machine decides to end it."""
        self._release()
        if not self._pid:
            self._memory_kills.close()
        if self._terminal is not None and not self._pid:  # else the reaper still uses the terminal
            self._terminal.close()
            self._terminal = None

    # --- starting and letting go --------------------------------------------------------------------------

    def _spawn(self) -> int:
        program = find(self._command[0], self._env)
        try:
            # posix_spawn instead of subprocess: it keeps the descriptors that the shell opened for the command, and does
            # not copy this process's memory. Python ignores SIGPIPE and SIGXFSZ; the command should not.
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
        """Release what belongs to an ended command: the terminal, the zombie and the thread."""
        if not self._pid:
            return
        if self._terminal is not None:
            self._terminal.take(self._pid)
        if self._returncode is None:
            return
        if self._reaper is not None:
            self._reaper.join()  # the reaper has posted, so it is at its last line
            self._reaper = None
        if self._terminal is not None and self._returncode < 0:
            self._terminal.restore()
        if not self._adopted:
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG)
        self._pid = 0
        if self._adopts:
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Reap the orphans that ended after the command, while no thread waited."""
        try:
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                pass
        except ChildProcessError:
            pass  # no child is left

    # --- the reaper's thread ------------------------------------------------------------------------------

    def _await(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # the command has ended
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
            if seen is None:  # only WNOHANG gives None; the check is for the type checker
                continue
            ended = seen.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED)
            if ended and seen.si_pid == pid:
                self._returncode = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
                self._post(self._ended(pid, self._returncode))
                return
            if take_status(seen.si_pid, os.WEXITED if ended else os.WSTOPPED) and seen.si_pid == pid:
                try:
                    self._stop_with_it(pid, seen.si_status)
                except Exception:  # without this thread, the agent would wait for the command's end for ever
                    logger.exception("an error of the agent at a stop of the command")

    def _ended(self, pid: int, returncode: int) -> CommandEnded:
        if not returncode:
            return CommandEnded(pid, returncode)
        try:
            kills, pids = self._memory_kills.count(), self._memory_kills.pids()
            return CommandEnded(pid, returncode, kills, self._memory_kills.limit() if kills else 0, pids)
        except Exception as error:  # noqa: BLE001 - without the event, the agent would wait for the end without end
            logger.warning("no evidence of kills for memory at the command's end: %s", error)
            return CommandEnded(pid, returncode)

    def _stop_with_it(self, group: int, signum: int) -> None:
        """Stop the agent with its stopped command, so that the shell sees a stopped job. Continue a command without a shell."""
        terminal = self._terminal
        wants = signum in _WANTS_TERMINAL
        if self._asked_to_end:
            self._send(signal.SIGCONT)
        elif terminal is None:
            pass  # somebody sent `kill -STOP` on purpose; there is no keyboard, and the agent stays awake
        elif wants and terminal.give(group):
            # The command used the terminal before the agent gave it, or `fg` has brought the job to the front.
            self._send(signal.SIGCONT)
        elif not wants and terminal.holder() != group and not terminal.held_by_us():
            pass  # not stopped from this terminal: no shell waits for the stop
        elif somebody_can_continue_us():
            terminal.take(group)
            # The agent's whole group stops, so that a script around the agent or a `| tee` beside it stops too. `fg` or `bg`
            # sends SIGCONT, which arrives as an event and goes on to the command through `signal`.
            os.killpg(0, signal.SIGSTOP)
        elif signum != signal.SIGSTOP:
            self._send(signal.SIGCONT)  # as the kernel treats an orphaned group: Ctrl-Z has no effect

    def _send(self, signum: int) -> None:
        try:
            os.killpg(self._pid, signum)
        except PermissionError:
            name = signal.Signals(signum).name
            logger.warning("%s cannot be sent to the command: it runs as another user (sudo?) [SG111]", name)
        except ProcessLookupError:
            logger.debug("group %d is gone", self._pid)


def take_status(pid: int, what: int) -> bool:
    """Take a child's status that `waitid` has shown, so that the next call shows a new one.

    Returns:
        False if the status is out of date already.
    """
    try:
        return os.waitid(os.P_PID, pid, what | os.WNOHANG) is not None
    except ChildProcessError:
        # The stopped child was killed since. `waitid` for stopped children does not count a zombie (seen, 1 in 100).
        return False
