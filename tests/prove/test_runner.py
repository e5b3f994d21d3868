"""One life: its environment, its words, and its ends. Of commands that never load torch."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from spotguard.hooks.recorder.plan import VARIABLE
from spotguard.prove.runner import Ground, ProveError, Runner, environment, wait, write_startup
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import UsageError


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    for name in ("job", "series", "series/work"):
        (tmp_path / name).mkdir()
    write_startup(tmp_path / "startup")
    return Ground(
        folder=tmp_path / "series",
        original=tmp_path / "job",
        workdir=tmp_path / "series" / "work",
        store=(tmp_path / "series" / "store").as_uri(),
        run_id="prove-plain-1",
        startup=tmp_path / "startup",
    )


def runner(ground: Ground, code: str, stall: float = 60.0, clock: Clock | None = None) -> Runner:
    command = [sys.executable, "-c", code]
    return Runner(command, dict(os.environ), 10, stall, ground.folder, clock or SystemClock())


def test_trackers_are_offline_and_nothing_of_another_run_is_seen(ground: Ground) -> None:
    env = {"SPOTGUARD_STORE": "s3://bucket/real", "WANDB_MODE": "online", "LR": "0.1", "PYTHONPATH": "/lib"}
    found = environment(env, Path("/plan.json"), Path("/scratch"), ground)
    assert (found["WANDB_MODE"], found["HF_HUB_OFFLINE"], found["LR"]) == ("offline", "1", "0.1")
    assert found["MLFLOW_TRACKING_URI"] == "file:/scratch/mlruns"
    assert found["PYTHONPATH"] == f"{ground.startup}{os.pathsep}/lib"
    assert [name for name in found if name.startswith("SPOTGUARD_")] == [VARIABLE]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("train.py", "train.py"),
        ("{job}/train.py", "{work}/train.py"),
        ("{job}", "{work}"),
        ("--out={job}/out", "--out={work}/out"),
        ("--lr=0.1", "--lr=0.1"),
        ("{job}-2/train.py", "{job}-2/train.py"),
        ("/usr/bin/python3", "/usr/bin/python3"),
    ],
)
def test_words_that_name_the_working_folder_name_the_copy(ground: Ground, word: str, found: str) -> None:
    places = {"job": ground.original, "work": ground.workdir}
    assert ground.moved(word.format(**places)) == found.format(**places)


def test_a_command_that_fails_is_told_with_its_last_words(ground: Ground) -> None:
    life = runner(ground, "import sys; print('loss 1.0'); sys.exit('no data here')").live(
        ground, "plain-1", None
    )
    assert (life.failed, life.taken, life.records) == ("exit code 1: no data here", False, [])
    assert life.console.read_text().splitlines() == ["loss 1.0", "no data here"]


def test_a_launchers_summary_hides_no_exception(ground: Ground) -> None:
    console = (
        "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: no data\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n  RuntimeError: of its words\n====\n"
    )
    life = runner(ground, f"import sys; print({console!r}); sys.exit(1)").live(ground, "plain-1", None)
    assert life.failed == "exit code 1: ValueError: no data"


def test_a_command_that_cannot_be_started_is_named(ground: Ground) -> None:
    made = Runner(["no-such-command"], dict(os.environ), 10, 60.0, ground.folder, SystemClock())
    with pytest.raises(UsageError, match="'no-such-command' cannot be started: No such file or directory"):
        made.live(ground, "plain-1", None)


#: Says that it is there, and leaves a child in a session of its own.
HANGS = """
import os, signal, sys
def train_for_ever():
    if os.fork() == 0:
        os.setsid()
    fifo = os.open("{fifo}", os.O_WRONLY)
    signal.pause()
train_for_ever()
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


class OnceItHasSaidWhere(SystemClock):
    """Stands until a process has written its stack, however long a busy machine takes to start it; then an hour passes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.began = folder, super().monotonic()

    def monotonic(self) -> float:
        said = any(path.stat().st_size for path in self.folder.rglob("stacks-*.txt"))
        return super().monotonic() + 3600 if said else self.began


def test_a_life_that_hangs_is_named_with_its_stack_and_ended_with_its_children(
    ground: Ground, fifo: Path
) -> None:
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    made = runner(ground, HANGS.format(fifo=fifo), 2.0, OnceItHasSaidWhere(ground.folder))
    with pytest.raises(
        ProveError, match=r"(?s)run 'plain-1' .* before it called .*: it stands in .*train_for_ever"
    ):
        made.live(ground, "plain-1", None)
    os.set_blocking(end, True)
    assert os.read(end, 1) == b"", "somebody still holds the other end"
    os.close(end)


def test_a_life_that_is_stopped_ends_with_its_children(ground: Ground, fifo: Path) -> None:
    made = runner(ground, HANGS.format(fifo=fifo))
    ends: list[KeyboardInterrupt] = []

    def live() -> None:
        try:
            made.live(ground, "plain-1", None)
        except KeyboardInterrupt as error:
            ends.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    end = os.open(fifo, os.O_RDONLY)  # until it is there
    made.stop.set()
    thread.join(100)
    assert os.read(end, 1) == b""
    os.close(end)
    assert len(ends) == 1


def test_the_directory_for_temporary_files_has_room_for_a_sockets_path(
    ground: Ground, tmp_path: Path
) -> None:
    """A loader's worker passes tensors through a Unix socket there, whose path may have 107 bytes."""
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    short = Path("/tmp", f"sg-{os.getpid()}")
    short.mkdir()
    code = "import socket, tempfile; socket.socket(socket.AF_UNIX).bind(tempfile.mkdtemp() + '/listener-12345678')"
    try:
        command = [sys.executable, "-c", code]
        runs = Runner(command, dict(os.environ), 10, 60.0, short, SystemClock())
        life = runs.live(replace(ground, folder=deep), "plain-1", None)
    finally:
        shutil.rmtree(short)
    assert (life.returncode, life.last_words) == (0, "")


class Interrupted(Exception):
    """Raised by a handler."""


def test_a_signal_that_wakes_another_thread_ends_the_wait() -> None:
    """The main thread blocks already, and nothing interrupts its call, as if the signal had come right before it."""

    def leave(signum: int, frame: object) -> None:
        raise Interrupted

    waits, release = threading.Event(), threading.Event()

    class Waits(SystemClock):
        def wait(self, event: threading.Event, timeout: float) -> bool:
            waits.set()
            return super().wait(event, timeout)

    def life() -> None:
        waits.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        release.wait()

    before = signal.signal(signal.SIGUSR1, leave)
    try:
        with ThreadPoolExecutor(1) as pool:
            try:
                with pytest.raises(Interrupted):
                    wait([pool.submit(life)], Waits())
            finally:
                release.set()
    finally:
        signal.signal(signal.SIGUSR1, before)
