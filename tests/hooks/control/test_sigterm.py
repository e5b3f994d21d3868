"""Signals and training: held where a save is under way or may be about to begin, chained everywhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.hooks.ipc.protocol import SIGNAL, Committed, Delivered, Leave, Preempt
from tests.fakes.agent import FakeAgent
from tests.fakes.talk import TIMEOUT
from tests.tiers import few_fast

pytest.importorskip("torch")

TRAINING = """
import os, signal, sys, threading, torch
def theirs(signum, frame):
    print("their handler", flush=True)
    sys.exit(3)
if {theirs!r}:
    signal.signal(getattr(signal, {theirs!r}), theirs)
import spotguard
from spotguard.hooks.control.ending import sigterm as signals
signals._ONE_PRESS = 0.0  # a test is faster than a person
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
guard = spotguard.register("file://{store}", run_id="r", model=model, optimizer=optimizer)
guard.restore()
pause = threading.Event()  # never set
def tell(message, tell=guard._report._send, **how):
    told = tell(message, **how)
    if {ended} and type(message).__name__ == "Committed":
        os.kill(os.getpid(), signal.SIGTERM)
        any(signals.held() or pause.wait(0.01) for _ in range(10_000))
    return told
guard._report._send = tell
begins = iter(["training"])
try:
    while True:
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        guard.step()
        pause.wait(0.01)
        any(print(word, flush=True) for word in begins)
        while {fails} and not pause.wait(0.01):
            if signals.held():
                raise RuntimeError("no data")
finally:
    print("finally", flush=True)
"""


#: As torch does where a data loader's worker is gone: its handler raises, wherever Python is then.
INTERRUPTED = """
import os, signal
from spotguard.hooks.control.ending import sigterm as signals
def gone(signum, frame):
    raise RuntimeError("DataLoader worker is killed")
signal.signal(signal.SIGCHLD, gone)
class Process:
    looks = 0
    def look(self, signum):
        self.looks += 1
        if self.looks == {at}:
            signal.raise_signal(signal.SIGCHLD)
        return signals.SigtermHold.SAVING
process = Process()
signals.hold_sigterm(process.look)
try:
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
except RuntimeError as error:
    print(error)
print(signals.held())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as name:
        yield Path(name)


class Training:
    def __init__(
        self,
        folder: Path,
        *,
        theirs: str = "",
        fails: bool = False,
        ended: bool = False,
        run: bool = False,
        code: str = TRAINING,
    ) -> None:
        code = code.format(theirs=theirs, fails=fails, ended=ended, store=folder / "store")
        env = {**os.environ, "SPOTGUARD_SOCKET": str(folder / "a.sock")}
        env |= {"SPOTGUARD_PARENT": "run"} if run else {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True
        )

    def says(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{line}\n"

    def ends(self) -> int:
        code = self.process.wait(TIMEOUT)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_a_group_wide_sigterm_does_not_outrun_the_notice(folder: Path) -> None:
    """A service manager signals training and agent at once; the agent's word comes a moment later, and counts."""
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder)
        agent.welcome()
        training.says("training")
        training.process.send_signal(signal.SIGTERM)
        agent.say(Preempt("n", 30.0, 3.0, "signal", "SIGTERM"))
        assert agent.hear(Committed).id == "n"
        agent.say(Leave("n", 75))
        training.says("finally")
        assert training.ends() == 75


def test_an_agent_that_ends_training_as_soon_as_it_hears_of_the_commit_is_obeyed(folder: Path) -> None:
    """Its SIGTERM is there before the saving thread has come to its end."""
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, ended=True)
        agent.welcome()
        training.says("training")
        agent.say(Preempt("n", 30.0, 3.0, "aws", "interruption"))
        assert agent.hear(Committed).id == "n"
        assert training.ends() == -signal.SIGTERM


@pytest.mark.slow
def test_training_that_the_same_signal_has_broken_is_saved_all_the_same(folder: Path) -> None:
    """A data loader's workers end by it, and training for want of data, before the agent's word is there."""
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, fails=True)
        agent.welcome()
        training.says("training")
        training.process.send_signal(signal.SIGTERM)
        training.says("finally")
        agent.say(Preempt("n", 30.0, 3.0, "signal", "SIGTERM"))
        assert agent.hear(Committed).id == "n"
        assert training.ends() == 1


@pytest.mark.parametrize(("theirs", "code"), few_fast([("", -signal.SIGTERM), ("SIGTERM", 3)]))
def test_a_sigterm_that_is_no_notice_goes_where_it_would_have_gone(
    folder: Path, theirs: str, code: int
) -> None:
    """A moment later, the default or the script's own handler has it; nothing is saved for it."""
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, theirs=theirs)
        agent.welcome()
        training.says("training")
        training.process.send_signal(signal.SIGTERM)
        if theirs:
            training.says("their handler")
            training.says("finally")
        assert training.ends() == code
    assert not list((folder / "store").rglob("*.safetensors"))


@pytest.mark.parametrize(("at", "said"), [(1, ["DataLoader worker is killed", "True"]), (2, ["True"])])
def test_it_is_held_also_where_another_signals_handler_raises_inside_ours(at: int, said: list[str]) -> None:
    """A launcher ends a whole session: training fails for want of data, and what is held decides that it saves first."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(at=at)], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (done.stdout.splitlines(), done.stderr) == (said, "")


#: A SIGTERM that is nobody's notice, in a script with a handler of its own.
CHAINED = """
import os, signal
from spotguard.hooks.control.ending import sigterm

class Process:
    def look(self, signum):
        return sigterm.SigtermHold.NOTHING

process = Process()
signal.signal(signal.SIGTERM, lambda signum, frame: print("their handler"))
sigterm.hold_sigterm(process.look)
os.kill(os.getpid(), signal.SIGTERM)
print("training")
"""


def test_the_scripts_own_handler_gets_a_sigterm_that_is_not_held() -> None:
    done = subprocess.run([sys.executable, "-c", CHAINED], capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.stdout.splitlines(), done.stderr) == (["their handler", "training"], "")


#: Another library's handler, which raises, in front of ours; and a SIGTERM while an error is handled.
BEHIND = """
import os, signal
from spotguard.hooks.control.ending import sigterm

class Process:
    def look(self, signum):
        return sigterm.SigtermHold.SAVING

def theirs(signum, frame):
    raise RuntimeError("another rank is gone")

process = Process()
sigterm.hold_sigterm(process.look)
signal.signal(signal.SIGTERM, theirs)
with sigterm.alone():
    os.kill(os.getpid(), signal.SIGTERM)
print(sigterm.held(), signal.getsignal(signal.SIGTERM) is theirs)
"""


def test_another_librarys_handler_does_not_raise_in_the_middle_of_a_save() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEHIND], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == (["True True"], "")


# --- a terminal's signals under `spotguard run` ---


@pytest.mark.parametrize("signum", few_fast([signal.SIGINT, signal.SIGHUP]))
@pytest.mark.parametrize("fails", [False, True], ids=["trains", "fails"])
def test_a_signal_of_the_terminal_is_told_to_the_agent_and_saved(
    folder: Path, signum: signal.Signals, fails: bool
) -> None:
    """The loader's workers die of it: training may end by an error before the agent's word is there."""
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, fails=fails, run=True)
        agent.welcome()
        training.says("training")
        training.process.send_signal(signum)
        assert agent.hear(Delivered).source == signum.name
        agent.say(Preempt("n", 30.0, 3.0, SIGNAL, signum.name))
        assert agent.hear(Committed).id == "n"
        if not fails:
            agent.say(Leave("n", 75))
        training.says("finally")
        assert training.ends() == (1 if fails else 75)


def test_a_second_ctrl_c_is_pythons_own(folder: Path) -> None:
    """It ends training at once, also the save for the first one."""
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, run=True)
        agent.welcome()
        training.says("training")
        training.process.send_signal(signal.SIGINT)
        assert agent.hear(Delivered).source == "SIGINT"
        training.process.send_signal(signal.SIGINT)
        training.says("finally")
        assert training.ends() == -signal.SIGINT
    assert not list((folder / "store").rglob("*.safetensors"))


@pytest.mark.parametrize("presses", [1, 2])
def test_training_that_comes_to_no_step_gets_the_ctrl_c_that_was_saved(folder: Path, presses: int) -> None:
    """It asks a person, or is behind its last step. Its `finally` blocks and exit handlers run, and are not interrupted again."""
    before, _, _ = TRAINING.partition("begins = ")
    code = f"""
import atexit, sys
sys.unraisablehook = lambda told: print("ignored", told.exc_type, flush=True)
atexit.register(print, "exit handler", flush=True)
{before}
optimizer.step()
guard.step()
try:
    print("training", flush=True)
    while not pause.wait(0.01):
        pass
finally:
    print("finally", flush=True)
"""
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, run=True, code=code)
        agent.welcome()
        training.says("training")
        training.process.send_signal(signal.SIGINT)
        assert agent.hear(Delivered).source == "SIGINT"
        agent.say(Preempt("n", 30.0, 3.0, SIGNAL, "SIGINT"))
        assert agent.hear(Committed).id == "n"
        if presses == 1:
            agent.say(Leave("n", 75))
        else:
            training.process.send_signal(signal.SIGINT)
        training.says("finally")
        training.says("exit handler")
        assert training.ends() == -signal.SIGINT


@pytest.mark.parametrize(
    ("theirs", "run", "code"),
    [("", False, -signal.SIGINT), ("SIGINT", True, 3)],
    ids=["without run", "a handler of its own"],
)
def test_a_ctrl_c_that_is_not_for_us_goes_where_it_would_have_gone(
    folder: Path, theirs: str, run: bool, code: int
) -> None:
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, theirs=theirs, run=run)
        agent.welcome()
        training.says("training")
        training.process.send_signal(signal.SIGINT)
        if theirs:
            training.says("their handler")
        training.says("finally")
        assert training.ends() == code
    assert not list((folder / "store").rglob("*.safetensors"))


#: One SIGINT that comes twice.
DOUBLED = """
import signal
from spotguard.hooks.control.ending import sigterm
class Process:
    def look(self, signum):
        return sigterm.SigtermHold.GUARDED
    def tell(self, signum):
        pass
process = Process()
sigterm._ONE_PRESS = 100.0
sigterm.hold_sigterm(process.look, None, process.tell)
signal.raise_signal(signal.SIGINT)
signal.raise_signal(signal.SIGINT)
print(sigterm.held())
"""


def test_a_ctrl_c_that_comes_from_two_senders_is_one() -> None:
    """A sender may signal `run` and training, and `run` passes it on."""
    done = subprocess.run(
        [sys.executable, "-c", DOUBLED], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


#: Where Ctrl-C has nothing to save, or a person types.
BESIDE_TRAINING = {
    "before training": "signal.raise_signal(signal.SIGINT); signal.pause()",
    "the wait for a last upload": "guard.restore(); guard._parts.shutdown.at_exit(); "
    "signal.raise_signal(signal.SIGINT); signal.pause()",
    "an error that was saved": "guard.restore(); guard._parts.saver.no_more_steps = True; "
    "signal.raise_signal(signal.SIGINT); signal.pause()",
    "a debugger's prompt": "guard.restore(); namespace = dict(__name__='cmd', signal=signal); "
    "exec('signal.raise_signal(signal.SIGINT)', namespace); signal.pause()",
    "the parent's end": "guard.restore(); os.getppid = lambda: 1; signal.raise_signal(signal.SIGINT); signal.pause()",
    "python -i": "guard.restore(); signal.raise_signal(signal.SIGINT); signal.pause()",
}


@pytest.mark.parametrize("where", few_fast(BESIDE_TRAINING, 2))
def test_a_ctrl_c_beside_training_is_pythons_own(folder: Path, where: str) -> None:
    before, _, _ = TRAINING.partition("guard.restore()")
    prompt = "sys.ps1 = '>>> '\n" if where == "python -i" else ""
    code = before.replace("import spotguard\n", f"{prompt}import spotguard\n") + BESIDE_TRAINING[where]
    with FakeAgent(folder / "a.sock") as agent:
        training = Training(folder, run=True, code=code)
        agent.welcome()
        assert training.ends() == -signal.SIGINT
        with pytest.raises(AssertionError, match="closed the connection"):
            agent.hear(Delivered)
