"""A forked child is not the process that is guarded, and the process that is guarded does not notice it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

CODE = """
import os, signal, sys, threading, torch, spotguard
torch.set_num_threads(1)
before = signal.getsignal(signal.SIGTERM)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = spotguard.register(sys.argv[1], run_id="run", model=model, optimizer=optimizer)
guard.restore()

def train():
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    guard.step()

def refused(call):
    try:
        call()
    except spotguard.SpotguardError as error:
        return "forked child" in str(error)
    return False

train()
guard._gate.close()  # as if a notice had come in this very moment, and its lock held by the saver
with guard._gate._lock, guard._saver._lock:
    pid = os.fork()
if pid == 0:
    model.weight.data[0] *= 2  # between boundaries: in a child that is nobody's business
    train()  # the gate holds nobody here
    train()
    good = refused(guard.save) and refused(guard.restore)
    good &= signal.getsignal(signal.SIGTERM) is before
    good &= not [t for t in threading.enumerate() if t.name.startswith("spotguard")]
    sys.exit(0 if good else 3)  # by the way of atexit, which must not wait for threads that are not there
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert code == 0, code
guard._gate.open()
assert signal.getsignal(signal.SIGTERM) is not before
train()
assert guard.save().step == 2
pid = os.fork()  # and again, when all of it has been used
if pid == 0:
    signal.raise_signal(signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_childs_guard_is_inert(folder: Path) -> None:
    """It parks nowhere, saves nothing, says so once, dies of SIGTERM, and ends without waiting; the parent saves on."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, folder.as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    assert "was changed in place" not in done.stderr
    assert done.stderr.count("trains on unguarded: nothing of it is saved") == 1
    names = {path.parent.name for path in folder.glob("run/checkpoints/*/COMMIT.json")}
    assert names == {"000000002-0001-0000"}
