"""Ctrl-C in the middle of it, from outside: the store is as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from spotguard.cli.commands.trials import doctor
from spotguard.doctor.cleanup import Leftovers
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.factory import open_store
from tests.fakes.store import FakeStore
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Fault
from tests.servers.moto import Moto
from tests.tiers import few_fast

#: An object of a save, and no probe.
LARGE = 1_000_000


@pytest.mark.parametrize(
    ("number", "code"),
    few_fast([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]),
    ids=["Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_interrupted_while_it_measures_it_leaves_nothing(
    number: int, code: int, moto: Moto, faults_before: FaultsBefore, tmp_path: Path
) -> None:
    """Some objects are there by then, and others on their way."""
    url, plain = f"{moto.fresh()}/prefix", moto.endpoint
    proxy = faults_before(moto)
    proxy.inject(
        Fault(
            "stall",
            after=LARGE,
            times=3,
            matching=lambda asked: asked.method == "PUT" and int(asked.headers["content-length"]) > LARGE,
        )
    )
    words = [sys.executable, "-m", "spotguard", "doctor", "--provider", "none", "--store", url]
    quiet, heard = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, stdout=quiet, stderr=heard, start_new_session=True) as running:
        assert proxy.wait_for_stalled(3)
        os.kill(running.pid, number)
        assert running.stderr is not None
        assert running.stderr.readline() == b"spotguard: removing what was put into the store\n"
        os.kill(running.pid, number)  # nobody waits with one finger
        proxy.go_on()
        assert running.wait(100) in (code, -number)
    assert list(open_store(f"{url}?endpoint={plain}").list("")) == []


class Interrupted(FakeStore):
    """Ctrl-C comes while it removes, and that call never comes to its end, as one of a thread that dies with its program."""

    def __init__(self) -> None:
        super().__init__()
        self.deleting = 0
        self.never = threading.Event()

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        self.deleting += 1
        if self.deleting == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self.never.wait(60)
            return
        super().delete(keys, timeout=timeout)


def test_interrupted_while_it_clears_it_leaves_nothing() -> None:
    store = Interrupted()
    litter = Leftovers(store, SystemClock())
    for key in ("run-7/probes/1", "run-7/probes/2"):
        store.put(litter.note(key), memoryview(b"x"))
    with pytest.raises(KeyboardInterrupt):
        litter.__exit__(None, None, None)
    store.never.set()
    assert (store.objects, litter.left) == ({}, ())


def test_interrupted_while_it_clears_from_outside(
    moto: Moto, faults_before: FaultsBefore, tmp_path: Path
) -> None:
    """The page is whole by then, and the last request of all is on its way."""
    url, plain = f"{moto.fresh()}/prefix", moto.endpoint
    proxy = faults_before(moto)
    # The probe's own removal passes; of those after it the first stands still.
    asked_for = iter((False, True))
    proxy.inject(
        Fault("stall", times=1, matching=lambda asked: asked.method == "POST" and next(asked_for, False))
    )
    words = [sys.executable, "-m", "spotguard", "doctor", "--provider", "none", "--store", url]
    quiet, heard = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, stdout=quiet, stderr=heard, start_new_session=True) as running:
        assert proxy.wait_for_stalled(1)
        os.kill(running.pid, signal.SIGINT)
        assert running.stderr is not None
        assert running.stderr.readline() == b"spotguard: removing what was put into the store\n"
        assert running.wait(100) in (130, -signal.SIGINT)
        assert list(open_store(f"{url}?endpoint={plain}").list("")) == []
        proxy.go_on()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # nohup may have ignored it
    try:
        with pytest.raises(SystemExit) as left, doctor._ended_in_order():
            signal.raise_signal(number)
        assert left.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_ignored_signals_stay_ignored() -> None:
    """nohup has it that a terminal which closes ends nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with doctor._ended_in_order():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
