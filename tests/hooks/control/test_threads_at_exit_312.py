"""A notice, a checkpoint or a SIGTERM while the interpreter ends, when no thread can be started any more."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from spotguard.hooks.ipc import protocol
from spotguard.hooks.state.changes import audit
from tests.fakes.noticed import notice, trained
from tests.fakes.store import FakeStore
from tests.fakes.training import PATIENCE, different, restored, small, trajectory
from tests.fakes.two_guards import on_all, two_guards

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def refused(thread: threading.Thread) -> None:
    """As Python 3.12 says it from the end of the main thread on: python/cpython#104690."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_threads_at_exit_312(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks save the step on which they stand, by threads that are there already."""
    store = FakeStore()
    with two_guards([store, store]) as trainers:
        on_all(lambda rank: trainers[rank].step())
        on_all(lambda rank: trainers[rank].guard.save())
        on_all(lambda rank: trainers[rank].step())
        try:
            with monkeypatch.context() as ending:
                ending.setattr(threading.Thread, "start", refused)
                trainers[0].guard._agent.hear(notice())
                assert [each.heard.wait(protocol.Committed, 2).step for each in trainers] == [2, 2]
        finally:
            trainers[0].guard._saver.release("n1", "the test is over")  # or its end waits for the answer


def test_the_first_background_checkpoint_is_made_at_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory, its checksums and its upload need threads; nobody is blamed, and the saver thread lives on."""
    monkeypatch.setattr(audit, "_ALONE", 0)
    store = FakeStore()
    with trained(store) as (guard, _, heard), monkeypatch.context() as ending:
        ending.setattr(threading.Thread, "start", refused)
        assert guard._saver.background()
        assert heard.wait(protocol.Committed).step == 2
        assert guard.save().step == 2
    step, state = restored(store, small)
    assert (step, different(state, trajectory(small, 2)[2])) == (2, [])
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


#: A script whose end waits for something while a SIGTERM comes, and no thread can be started.
ENDING = """
import atexit, os, signal, threading
from spotguard.hooks.control.ending import sigterm

class Process:
    explained = threading.Event()
    def look(self, signum):
        return sigterm.SigtermHold.GUARDED
    def unnoticed(self):
        self.explained.set()
        return {saves}

def refused(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def end():
    threading.Thread.start = refused
    os.kill(os.getpid(), signal.SIGTERM)
    print("waits", process.explained.wait({patience}), flush=True)
    sigterm.wait_explained()
    print("held", sigterm.held())

process = Process()
sigterm._MOMENT = 0.01
signal.signal(signal.SIGTERM, lambda signum, frame: print("their handler", flush=True))
sigterm.hold_sigterm(process.look, process.unnoticed)
atexit.register(end)
"""


@pytest.mark.parametrize("saves", [True, False], ids=["saves", "unexplained"])
def test_a_sigterm_at_exit_tears_no_wait(saves: bool) -> None:
    """It is held for the moment in which a notice may explain it. Then a save begins, or the script's own handler gets it."""
    script = ENDING.format(saves=saves, patience=PATIENCE)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == (
        ["held True", "waits True"] if saves else ["held False", "their handler", "waits True"]
    )
