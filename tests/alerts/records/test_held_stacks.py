"""The stacks of a process in which no Python runs: how they are read from outside, and what is kept of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.alerts.records import held_stacks
from spotguard.alerts.records.held_stacks import find_reader, read_stacks

#: A program that holds the interpreter's lock in a call of the C library, for ever, with a secret in its variables and its words.
HELD = """
import ctypes, sys, threading
def work(password):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    print("held", flush=True)
    while True:
        libc.pthread_mutex_lock(mutex)
work("hunter2")
"""
THREADS = [
    {
        "thread_name": "Thread-1",
        "owns_gil": False,
        "frames": [{"name": "wait", "filename": "/lib/threading.py", "line": 320, "locals": None}],
    },
    {
        "thread_name": "MainThread",
        "owns_gil": True,
        "frames": [
            {"name": "pthread_mutex_lock", "filename": "libc.so.6", "line": 0, "locals": None},
            {"name": "work", "filename": "/home/me/--password=hunter2/train.py", "line": 7, "locals": None},
        ],
    },
]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    script = tmp_path / "held.py"
    script.write_text(HELD)
    process = subprocess.Popen([sys.executable, script, "--api-key=hunter2"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def reader(folder: Path, script: str) -> str:
    """A py-spy that notes its words and does what the shell's lines do."""
    path = folder / "py-spy"
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/words\n{script}\n')
    path.chmod(0o755)
    return str(path)


def test_native_frames_are_read_where_they_can_be(tmp_path: Path) -> None:
    (tmp_path / "threads").write_text(json.dumps(THREADS))
    fake = reader(tmp_path, f'case "$*" in *--native*) exit 1;; esac; cat {tmp_path}/threads')
    stacks, why = read_stacks(7, fake)
    assert why == ""
    assert stacks == [
        "MainThread (holds the interpreter's lock):\n  /home/me/--password=… in work\n  libc.so.6 in pthread_mutex_lock",
        "Thread-1:\n  /lib/threading.py:320 in wait",
    ]
    words = (tmp_path / "words").read_text()
    assert words.splitlines() == [
        "dump --json --full-filenames --native --pid 7",
        "dump --json --full-filenames --pid 7",
    ]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Error: Permission denied (os error 13)' >&2; exit 1", "py-spy may not read it"),
        ("echo 'Error: Failed to find python version' >&2; exit 1", "Failed to find python version"),
        ("echo '{'", "py-spy: JSONDecodeError"),
        ("echo '[{}]'", "py-spy: KeyError"),
        ("exec sleep 600", "py-spy took more than 0 s"),
    ],
)
def test_a_reader_that_gives_no_stacks_is_named_with_its_reason(
    tmp_path: Path, script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(held_stacks, "_READING", 0.2)
    stacks, reason = read_stacks(7, reader(tmp_path, script))
    assert stacks == []
    assert why in reason


def kept(folder: Path, pid: int, path: str) -> tuple[str, list[dict[str, Any]]]:
    """Have the stacks of this process be kept; what is logged, and the records."""
    given = {
        "run_id": "gpt",
        "store": (folder / "store").as_uri(),
        "step": 12,
        "ranks": [{"pid": pid, "rank": 1, "attempt": 3}],
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "spotguard.alerts.records.held_stacks"],
        input=json.dumps(given),
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    records = sorted((folder / "store" / "gpt" / "stalls").iterdir())
    assert all(each.name.startswith("0003-held-00001-") for each in records)
    return done.stdout, [json.loads(each.read_text()) for each in records]


def test_a_record_is_kept_with_the_stacks_or_the_reason(tmp_path: Path, held: int) -> None:
    said, (record,) = kept(tmp_path, held, os.environ["PATH"])
    assert said.startswith(f"rank 1 (pid {held}) stands still in native code: ")
    assert (record["by"], record["pid"], record["step"]) == ("agent", held, 12)
    assert bool(record["stacks"]) != bool(record["why"])


def test_without_py_spy_the_reason_names_it() -> None:
    assert read_stacks(7, None) == ([], "py-spy is not installed, so its stacks are not known")


def test_py_spy_shows_the_native_call_and_no_values(tmp_path: Path, held: int) -> None:
    if find_reader() is None:
        pytest.skip("py-spy is not installed here")
    said, (record,) = kept(tmp_path, held, os.environ["PATH"])
    main, other = record["stacks"]
    assert main.startswith("MainThread (holds the interpreter's lock):\n")
    assert "held.py:8 in work" in main
    assert "mutex" in main
    assert "threading.py:" in other
    assert main in said
    assert "hunter2" not in said + json.dumps(record)
