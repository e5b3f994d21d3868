"""One command under the supervisor, with no terminal: started, signalled as a group, ended, started again."""

from __future__ import annotations

import errno
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotguard.agent.actions import Launch
from spotguard.agent.events import CommandEnded, Event, Signalled
from spotguard.agent.process.memory.kills import MemoryKills
from spotguard.agent.process.supervisor import CommandError, Supervisor, take_status
from tests.fakes.awake import STAYS_AWAKE
from tests.fakes.report import TIMEOUT, Report

#: Reports every SIGTERM and SIGUSR1, and so does the child that it starts first; ends with 7 on SIGUSR2.
FAMILY = f"""
import os, signal, sys
report = int(os.environ["REPORT"])
who = "child" if os.fork() == 0 else "leader"
def say(line): os.write(report, f"{{who}} {{os.getpid()}} {{line}}\\n".encode())
for signum in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(signum, lambda n, frame: say(signal.Signals(n).name))
signal.signal(signal.SIGUSR2, lambda n, frame: os._exit(7) if who == "leader" else None)
{STAYS_AWAKE}
say("ready")
while True: signal.pause()
"""


class Stand:
    """A supervisor, the queue it posts to, and the pipe its commands report to."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.report = Report()
        os.set_inheritable(self.report.fd, True)
        self.supervisors: list[Supervisor] = []

    def supervise(
        self, *command: str, adopts: bool | None = None, env: Mapping[str, str] = os.environ
    ) -> Supervisor:
        env = {**env, "REPORT": str(self.report.fd)}
        # No terminal: the one of whoever runs the tests is not ours to give away.
        made = Supervisor(command, env=env, post=self.events.put, adopts=adopts, terminal=lambda: None)
        self.supervisors.append(made)
        return made

    def python(self, code: str, *arguments: str) -> Supervisor:
        return self.supervise(sys.executable, "-c", code, *arguments)

    def ended(self) -> tuple[int, int]:
        event = self.events.get(timeout=TIMEOUT)
        assert isinstance(event, CommandEnded)
        return event.pid, event.returncode


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    for supervisor in made.supervisors:
        supervisor.kill()
        supervisor.close()
    made.report.close()


def reapers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "spotguard-reaper"]


@pytest.mark.parametrize(
    ("script", "returncode"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)]
)
def test_the_end_is_told_as_subprocess_has_it(stand: Stand, script: str, returncode: int) -> None:
    """A code, or the negative of the signal; and then neither a thread nor a zombie is left."""
    supervisor = stand.supervise("sh", "-c", script)
    pid = supervisor.start()
    assert stand.ended() == (pid, returncode)
    supervisor.close()
    assert reapers() == []
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_the_end_is_told_though_its_evidence_cannot_be_read(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reaper reads cgroups and the kernel's log first. The agent would wait for that end for ever."""

    def fails(kills: MemoryKills) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(MemoryKills, "count", fails)
    supervisor = stand.supervise("sh", "-c", "exit 3")
    pid = supervisor.start()
    assert stand.events.get(timeout=TIMEOUT) == CommandEnded(pid, 3)
    assert "no evidence of kills for memory at the command's end" in caplog.text


def test_a_signal_goes_to_the_whole_group(stand: Stand) -> None:
    """Data loader workers and shells' children hear it too."""
    supervisor = stand.python(FAMILY)
    pid = supervisor.start()
    assert os.getpgid(pid) == pid
    assert os.getsid(pid) == os.getsid(0), "a session of its own would have no terminal"
    assert {stand.report.next().split()[2] for _ in range(2)} == {"ready"}
    supervisor.signal(signal.SIGUSR1)
    heard = {tuple(stand.report.next().split()[::2]) for _ in range(2)}
    assert heard == {("leader", "SIGUSR1"), ("child", "SIGUSR1")}


def test_children_of_a_command_stay_until_they_are_killed(stand: Stand) -> None:
    """As under a shell; and `kill` still finds it after the leader's end, when the number is still ours."""
    supervisor = stand.python(FAMILY)
    pid = supervisor.start()
    ready = [stand.report.next().split() for _ in range(2)]
    child = next(int(words[1]) for words in ready if words[0] == "child")
    watched = os.pidfd_open(child)
    os.kill(pid, signal.SIGUSR2)
    assert stand.ended() == (pid, 7)
    assert supervisor.look().group, "the leader's zombie is not meant, its child is"
    supervisor.signal(signal.SIGUSR1)
    assert stand.report.until("child").endswith("SIGUSR1")
    supervisor.kill()
    assert select.select([watched], [], [], TIMEOUT)[0], "the child outlived the kill"
    os.close(watched)


def test_the_kill_reaches_descendants_in_sessions_of_their_own(stand: Stand) -> None:
    """Torchrun's workers, also before they register: they would keep their GPUs on a machine that stays."""
    code = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {FAMILY!r}], start_new_session=True, close_fds=False).wait()
"""
    supervisor = stand.python(code)
    pid = supervisor.start()
    watched = [os.pidfd_open(int(stand.report.next().split()[1])) for _ in range(2)]
    supervisor.kill()
    assert stand.ended() == (pid, -signal.SIGKILL)
    for pidfd in watched:
        assert select.select([pidfd], [], [], TIMEOUT)[0], "a descendant outlived the kill"
        os.close(pidfd)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGHUP"])
@pytest.mark.parametrize("action", ["SIG_DFL", "SIG_IGN", "default_int_handler"])
def test_a_signal_before_an_end_is_passed_on_only_to_a_command_that_handles_it(
    action: str, name: str, stand: Stand
) -> None:
    """Or ignores it. Its default would end a command that saves at a notice."""
    command = stand.python(
        f"import os, signal; signal.signal(signal.{name}, signal.{action}); "
        "os.write(int(os.environ['REPORT']), b'ready' + bytes([10])); signal.pause()"
    )
    pid = command.start()
    assert stand.report.next() == "ready"
    command.pass_on(signal.Signals[name])
    if action == "SIG_DFL":
        assert stand.events.get(timeout=TIMEOUT) == Signalled(signal.Signals[name], unhandled=True)
    command.kill()
    ended = stand.events.get(timeout=TIMEOUT)
    assert isinstance(ended, CommandEnded)
    assert ended.pid == pid


@pytest.mark.parametrize("registered", ["leader", "child", "nobody"])
def test_sigusr1_ends_no_training_beside_a_process_that_handles_it(registered: str, stand: Stand) -> None:
    """A shell's trap or a data loader's handler says nothing of the trainer, which would end without a save."""
    command = stand.python(
        f"""
import os, signal
report = int(os.environ["REPORT"])
child = os.fork() == 0
{STAYS_AWAKE}
if child:
    signal.signal(signal.SIGUSR1, lambda n, frame: os.write(report, b"child heard\\n"))
    os.write(report, b"%d\\n" % os.getpid())
while True: signal.pause()
"""
    )
    leader = command.start()
    pids = {"leader": leader, "child": int(stand.report.next()), "nobody": 0}
    command.pass_on(signal.SIGUSR1, {pids[registered]})
    if registered == "leader":
        assert stand.events.get(timeout=TIMEOUT) == Signalled(signal.SIGUSR1, unhandled=True)
    else:
        assert stand.report.next() == "child heard"
    command.signal(signal.SIGTERM)
    assert stand.ended() == (leader, -signal.SIGTERM), "SIGUSR1 has not ended it before"
    assert stand.events.empty()


def test_a_signal_before_the_start_is_kept(stand: Stand) -> None:
    """A notice that comes while we are starting is not lost."""
    supervisor = stand.supervise("sleep", "1000")
    supervisor.signal(signal.SIGTERM)
    pid = supervisor.start()
    assert stand.ended() == (pid, -signal.SIGTERM)


def test_a_stopped_command_hears_sigterm(stand: Stand) -> None:
    """It must be awake to end in order, whether it was stopped just before or just after it was asked."""
    code = (
        f"import os, signal\n{STAYS_AWAKE}"
        "signal.signal(signal.SIGTERM, lambda n, frame: os._exit(5))\n"
        "os.write(int(os.environ['REPORT']), b'ready\\n')\n"
        "while True: signal.pause()\n"
    )
    for order in ([signal.SIGSTOP, signal.SIGTERM], [signal.SIGSTOP, signal.SIGSTOP, signal.SIGTERM]):
        supervisor = stand.python(code)
        pid = supervisor.start()
        stand.report.next()
        for signum in order:
            supervisor.signal(signum)
        assert stand.ended() == (pid, 5)


def test_a_command_that_stops_itself_when_asked_to_end(stand: Stand) -> None:
    """It is woken by the reaper: nobody else is there to do it."""
    script = 'trap "exit 5" TERM; echo ready >&"$REPORT"; while :; do kill -STOP $$; done'
    supervisor = stand.supervise("bash", "-c", script)
    pid = supervisor.start()
    stand.report.next()
    supervisor.signal(signal.SIGTERM)
    assert stand.ended() == (pid, 5)


def test_a_stop_that_was_overtaken_by_the_end() -> None:
    """What the reaper saw stopped may be dead when it looks again; that must not end the reaper."""
    pid = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
    os.kill(pid, signal.SIGSTOP)
    assert os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    os.kill(pid, signal.SIGKILL)
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not take_status(pid, os.WSTOPPED)
    assert take_status(pid, os.WEXITED)
    assert not take_status(pid, os.WEXITED)


def test_an_error_at_a_stop_does_not_hide_the_end(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its event, the agent would wait for ever."""
    command = stand.python("import os, signal; os.kill(os.getpid(), signal.SIGSTOP); raise SystemExit(7)")

    def fails(*_: object) -> None:
        command.signal(signal.SIGCONT)
        raise OSError("the terminal is gone")

    monkeypatch.setattr(command, "_stop_with_it", fails)
    pid = command.start()
    assert stand.events.get(timeout=TIMEOUT) == CommandEnded(pid, 7)


def test_a_command_without_a_thread_to_guard_it_is_not_left_running(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of processes counts threads, too."""
    started = list[int]()
    real = Supervisor._spawn

    def spawn(self: Supervisor) -> int:
        started.append(real(self))
        return started[-1]

    monkeypatch.setattr(Supervisor, "_spawn", spawn)

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    command = stand.python("import time; time.sleep(1000)")
    with pytest.raises(CommandError, match="cannot be guarded: can't start new thread; raise the limit"):
        command.start()
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    assert command.pid == 0


def test_a_relaunch(stand: Stand) -> None:
    """The same command again, after its end; not before it."""
    supervisor = stand.supervise("sh", "-c", "exit 9")
    first = supervisor.start()
    assert stand.ended() == (first, 9)
    second = supervisor.start()
    assert stand.ended() == (second, 9)
    assert first != second


def test_a_command_that_starts_again_knows_the_failure_before(stand: Stand) -> None:
    names = "SPOTGUARD_LAST_FAILURE", "SPOTGUARD_FAILURES", "SPOTGUARD_SKIP_STEPS"
    told = (
        f'import os; os.write(int(os.environ["REPORT"]), f"{{[*map(os.environ.get, {names})]}}\\n".encode())'
    )
    supervisor = stand.python(told)
    again = Launch(failure="nan", rules={"stall": ("restart", 0), "gpu": ("leave", 2)}, skip="job:812")
    for launch in (Launch(), again, Launch()):
        supervisor.hint(launch)
        supervisor.start()
        stand.ended()
    assert [stand.report.next() for _ in range(3)] == [
        "[None, None, None]",
        "['nan', 'gpu=leave:2,stall=restart:0', 'job:812']",
        "[None, None, None]",
    ]


def test_each_start_of_a_command_has_a_text_of_its_own(stand: Stand) -> None:
    told = 'import os; os.write(int(os.environ["REPORT"]), (os.environ["SPOTGUARD_LAUNCH"] + "\\n").encode())'
    supervisor = stand.python(told)
    for _ in range(2):
        supervisor.hint(Launch())
        supervisor.start()
        stand.ended()
    assert len({stand.report.next() for _ in range(2)}) == 2


def test_a_command_that_starts_again_behind_a_dead_loader_worker_is_to_use_none(stand: Stand) -> None:
    """A number that the user has set holds at every other start."""
    told = 'import os; os.write(int(os.environ["REPORT"]), f"{os.environ.get(\'SPOTGUARD_LOADER_WORKERS\')}\\n".encode())'
    for own, otherwise in (({}, "None"), ({"SPOTGUARD_LOADER_WORKERS": "8"}, "8")):
        supervisor = stand.supervise(sys.executable, "-c", told, env={**os.environ, **own})
        for launch in (Launch(), Launch(failure="loader-worker"), Launch(failure="network")):
            supervisor.hint(launch)
            supervisor.start()
            stand.ended()
        assert [stand.report.next() for _ in range(3)] == [otherwise, "0", otherwise]


def test_a_command_that_starts_again_meets_elsewhere(stand: Stand) -> None:
    """As torchrun, whose rendezvous was on the machine that is gone."""
    script = (
        "import os; os.write(int(os.environ['REPORT']), (os.environ['PET_RDZV_ENDPOINT'] + chr(10)).encode())"
    )
    env = {**os.environ, "PET_RDZV_ENDPOINT": "node1:29400"}
    command = stand.supervise("env", "-u", "NONE", sys.executable, "-c", script, "torchrun", env=env)
    assert "it is on node2 from now on" in command.move(frozenset({"node1"}), "node2")
    assert not command.move(frozenset({"node1"}), "node2")
    command.start()
    assert stand.report.next() == "node2:29400"


def test_a_running_command_is_not_started_again(stand: Stand) -> None:
    supervisor = stand.supervise("sleep", "1000")
    pid = supervisor.start()
    with pytest.raises(RuntimeError, match=str(pid)):
        supervisor.start()
    supervisor.kill()
    assert stand.ended() == (pid, -signal.SIGKILL)


def test_the_command_gets_what_it_would_have_had_without_us(stand: Stand) -> None:
    """Default SIGPIPE, no blocked signal, our descriptors: `yes | head` ends, and `<(…)` works."""
    # Another program's eyes: Python ignores SIGPIPE for itself at its start.
    shell = 'grep -E "SigIgn|SigBlk" /proc/self/status | tr "\\n" " " >&"$REPORT"; echo >&"$REPORT"'
    stand.supervise("bash", "-c", shell).start()
    words = stand.report.next().split()
    assert int(words[1], 16) == 0, "blocked signals"
    assert int(words[3], 16) & 1 << (signal.SIGPIPE - 1) == 0, "SIGPIPE is ignored"
    assert stand.ended()[1] == 0


def test_somebody_elses_child_is_left_alone(stand: Stand) -> None:
    """A caller's own subprocess keeps its status."""
    supervisor = stand.supervise("sleep", "1000")
    supervisor.start()
    with subprocess.Popen(["sh", "-c", "exit 4"]) as other:
        assert other.wait(TIMEOUT) == 4
    assert stand.events.empty()


def test_signals_that_were_ignored_stay_ignored_for_the_command() -> None:
    """`trap '' USR1 HUP` before `spotguard run` holds for the training too; SIGTERM alone is heard by us."""
    code = """
import queue, signal, sys
from spotguard.agent.process.signals import Signals
from spotguard.agent.process.supervisor import Supervisor
meant = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP}
for signum in meant | {signal.SIGTERM}: signal.signal(signum, signal.SIG_IGN)
events = queue.SimpleQueue()
with Signals(events.put):
    supervisor = Supervisor(["grep", "SigIgn", "/proc/self/status"], env={}, post=events.put, terminal=lambda: None)
    supervisor.start()
    ended = events.get()
    supervisor.close()
mask = sum(1 << signum - 1 for signum in meant)
print(mask, 1 << signal.SIGTERM - 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    ignored, masks = (line.split() for line in done.stdout.splitlines())
    meant, term = (int(word) for word in masks)
    assert int(ignored[1], 16) & meant == meant
    assert int(ignored[1], 16) & term == 0


def test_a_parent_that_ignored_sigchld_costs_no_status() -> None:
    """The kernel reaps for who ignores it, and the command's code would be lost."""
    guardian = Path(__file__).parents[2] / "fakes/guardian.py"
    command = [sys.executable, str(guardian), "2", "sh", "-c", "exit 6"]
    done = subprocess.run(
        [sys.executable, "-c", IGNORING, *command], capture_output=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 6, done.stderr


IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def nobody_special(folder: Path) -> Iterator[None]:
    """Root may enter everything: for the moment it is another user, whose `folder` is."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, 65534, -1)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("word", "code", "words"),
    [
        ("no-such-program", 127, "'no-such-program'"),
        ("./no-such-file", 127, "no such file"),
        ("", 127, "empty"),
        ("script.py", 127, "./script.py"),
        ("./script.py", 126, "python ./script.py"),
        ("./notes", 126, "first line"),
        ("./orphan", 126, "interpreter"),
        ("./folder", 126, "folder"),
        ("./foreign", 126, "built for another system"),
        ("./locked/program", 126, "is not accessible"),
    ],
)
def test_a_command_that_cannot_be_started(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, code: int, words: str
) -> None:
    """One line that names it and the way out, the shell's own code, and nothing was started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print()")
    (tmp_path / "notes").write_bytes(b"\0\1\2 no program")
    (tmp_path / "orphan").write_text("#!/no/such/interpreter\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir(mode=0)
    (tmp_path / "foreign").write_bytes(Path("/bin/true").read_bytes().replace(b"/ld-", b"/no-"))
    for name in ("notes", "orphan", "foreign"):
        (tmp_path / name).chmod(0o755)
    with pytest.raises(CommandError) as caught, nobody_special(tmp_path):
        stand.supervise(word).start()
    assert caught.value.exit_code == code
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert stand.events.empty()
    assert reapers() == []


def test_the_commands_own_path_is_searched(stand: Stand, tmp_path: Path) -> None:
    """The environment that the command gets decides, not ours."""
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\nexit 8\n")
    program.chmod(0o755)
    supervisor = stand.supervise("only-here", env={"PATH": str(tmp_path)})
    supervisor.start()
    assert stand.ended()[1] == 8
