"""Threads that are made beforehand run all tasks: a thread that hangs holds up none, and at exit the existing ones do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from spotguard.hooks.ipc import threads
from spotguard.hooks.ipc.threads import StandingThread, ThreadPool, join_ended

#: Seconds after which a wait between threads counts as a hang.
PATIENCE = 100.0


class Hanging:
    """Tasks that hang until `go` is set."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self) -> None:
        self.begun.release()
        assert self.go.wait(PATIENCE)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go.set()


def running(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == name]


def test_a_thread_runs_its_tasks_in_order_also_behind_a_mistake(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []
    thread = StandingThread("order")
    thread.give(lambda: ran.append(1))
    thread.give(lambda: 1 / 0)
    ended = threading.Event()
    last = thread.give(lambda: ran.append(2), ended.set)
    assert ended.wait(PATIENCE)
    assert (ran, last.done.is_set()) == ([1, 2], True)
    assert "internal error; please report it [SG704]" in caplog.text
    thread.end()
    assert thread.join(PATIENCE)


def test_a_pool_whose_threads_all_hang_runs_one_more_task(hanging: Hanging) -> None:
    """And another one, when that one hangs too. Once they return, the pool has as many as before, and all have run."""
    pool = ThreadPool("hung", 3)
    pool.make()
    stuck = [pool.give(hanging) for _ in range(3)]
    for _ in stuck:
        assert hanging.begun.acquire(timeout=PATIENCE)
    assert pool.give(lambda: None).done.wait(PATIENCE)
    stuck.append(pool.give(hanging))
    assert hanging.begun.acquire(timeout=PATIENCE)
    assert pool.give(lambda: None).done.wait(PATIENCE)
    assert not any(handle.done.is_set() for handle in stuck)
    hanging.go.set()
    assert all(handle.done.wait(PATIENCE) for handle in stuck)
    while len(running("hung")) > 3:
        assert pool.give(lambda: None).done.wait(PATIENCE)
    pool.close()


def test_at_exit_a_task_waits_for_a_thread_that_is_there(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is started, though the machine would have one, and the task runs when the thread returns."""
    pool = ThreadPool("ending")
    pool.make()
    stuck = pool.give(hanging)
    assert hanging.begun.acquire(timeout=PATIENCE)
    monkeypatch.setattr(threads, "at_exit", lambda: True)
    waiting = pool.give(lambda: None)
    assert len(running("ending")) == 1
    assert not waiting.done.is_set()
    hanging.go.set()
    assert waiting.done.wait(PATIENCE)
    assert stuck.done.is_set()
    pool.close()


def test_a_pool_without_a_thread_says_so_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "at_exit", lambda: True)
    with pytest.raises(RuntimeError, match="no thread can be started for never-made"):
        ThreadPool("never-made").give(lambda: None)
    assert running("never-made") == []


def test_a_task_that_was_withdrawn_never_runs(hanging: Hanging) -> None:
    thread, ran = StandingThread("withdrawn"), []
    stuck = thread.give(hanging)
    assert hanging.begun.acquire(timeout=PATIENCE)
    waiting = thread.give(lambda: ran.append(1))
    assert (waiting.withdraw(), stuck.withdraw()) == (True, False)
    hanging.go.set()
    thread.end()
    assert thread.join(PATIENCE)
    assert ran == []


def test_a_forked_child_starts_no_thread_and_parent_goes_on() -> None:
    pool = ThreadPool("parents")
    pool.make()
    thread = StandingThread("parent")
    if (pid := os.fork()) == 0:
        try:
            pool.give(lambda: None)
        except RuntimeError:
            os._exit(int(thread.alive or threading.active_count() > 1))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pool.give(lambda: None).done.wait(PATIENCE)
    thread.end()
    pool.close()


def test_a_forked_child_reads_side_by_side_with_threads_of_its_own() -> None:
    """A worker that a script forks may list checkpoints, or train under a guard of its own."""
    threads.side_by_side(str, range(3))
    if (pid := os.fork()) == 0:
        os._exit(int(threads.side_by_side(str, range(3)) != ["0", "1", "2"]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_all_threads_together_have_one_deadline(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads without a task may hang in a look at their connection; those with a task are not waited for."""
    join_ended()
    idle = [StandingThread("idle", idle=hanging, every=0.0) for _ in range(12)]
    for _ in idle:
        assert hanging.begun.acquire(timeout=PATIENCE)
    busy = StandingThread("busy")
    busy.give(hanging)
    assert hanging.begun.acquire(timeout=PATIENCE)
    for thread in [*idle, busy]:
        thread.end()
    now, waits = 1000.0, []

    def join(thread: threading.Thread, seconds: float) -> None:
        nonlocal now
        waits.append((thread.name, seconds))
        now += seconds

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", join)
        patched.setattr(time, "monotonic", lambda: now)
        join_ended(1.0)
    assert {name for name, _ in waits} == {"idle"}
    assert (len(waits), sum(seconds for _, seconds in waits)) == (12, 1.0)


#: A script that ends, with all of a pool's threads hanging, and one more task at its exit.
ENDING = """
import atexit, threading
from spotguard.hooks.ipc import threads
go, begun = threading.Event(), threading.Semaphore(0)
pool = threads.ThreadPool("pool", 2)
pool.make()
def hang():
    begun.release()
    go.wait()
def end():
    started = []
    threading.Thread.start = started.append
    print("at exit", threads.at_exit())
    task = pool.give(lambda: print("ran"))
    print(threads.side_by_side(str, range(4)))
    go.set()
    task.done.wait()
    print(started)
for _ in range(2):
    pool.give(hang)
    begun.acquire()
atexit.register(end)
def train():
    threading.main_thread().join()
    print("training", threads.at_exit())
threading.Thread(target=train).start()
"""


def test_at_interpreter_exit_no_thread_is_started_and_all_is_done() -> None:
    """A script whose training runs on another thread, behind the end of the main one, is not at its exit."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.splitlines() == [
        "training False",
        "at exit True",
        "['0', '1', '2', '3']",
        "ran",
        "[]",
    ]
