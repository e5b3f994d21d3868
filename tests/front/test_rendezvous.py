"""A torchrun on a machine that was not there when the others moved: where it is sent, and that nothing keeps it from starting."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spotguard.commands.rendezvous import asking_first
from spotguard.hooks import rendezvous
from spotguard.hooks.checkpoints.commit import claim_attempt
from spotguard.providers.stores.localfs import FileStore

ASKED = "gone.invalid:29400"
#: Says with which words it was called, and where its ranks meet.
TORCHRUN = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("SPOTGUARD_RENDEZVOUS", "")]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., tuple[list[str], str, str]]:
    """Start torchrun on a new machine, with the store as it is: its words, the variable, and what was said on stderr."""
    program = tmp_path / "torchrun"
    program.write_text(TORCHRUN)
    program.chmod(0o755)

    def started(*words: str) -> tuple[list[str], str, str]:
        store = {"SPOTGUARD_STORE": (tmp_path / "store").as_uri(), "SPOTGUARD_RUN_ID": "job"}
        command = asking_first([str(program), *words], os.environ)
        assert command[-1 - len(words)] == str(program)
        assert len(command) > 1 + len(words)
        done = subprocess.run(
            command, env=os.environ | store, capture_output=True, text=True, check=True, timeout=30
        )
        called, said = json.loads(done.stdout)
        return called, said, done.stderr

    return started


def claim(folder: Path, info: Mapping[str, Any]) -> int:
    return claim_attempt(FileStore(str(folder / "store"), (folder / "store").as_uri()), "job", info)


def moved_to(at: str) -> dict[str, Any]:
    return rendezvous.said({rendezvous.VARIABLE: rendezvous.variable(ASKED, at)})


def test_it_goes_where_the_newest_record_says_and_somebody_answers(
    tmp_path: Path, start: Callable[..., tuple[list[str], str, str]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        at = f"127.0.0.1:{there.getsockname()[1]}"
        claim(tmp_path, moved_to(at))
        words, said, errors = start("--rdzv-endpoint", ASKED, "train.py", "--rdzv-endpoint=its-own")
    assert words == ["--rdzv-endpoint", at, "train.py", "--rdzv-endpoint=its-own"]
    assert said == f"{ASKED} {at}"
    assert errors == f"spotguard: this job meets at {at} by now, and no more at {ASKED}: joining it there\n"

    # Nobody answers there any more.
    assert start("--rdzv-endpoint", ASKED, "train.py") == (["--rdzv-endpoint", ASKED, "train.py"], "", "")


def test_it_stays_where_it_was_told_when_the_job_has_met_there_since(
    tmp_path: Path, start: Callable[..., tuple[list[str], str, str]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        claim(tmp_path, moved_to(f"127.0.0.1:{there.getsockname()[1]}"))
        newest = claim(tmp_path, {})
        assert start(f"--rdzv-endpoint={ASKED}")[0] == [f"--rdzv-endpoint={ASKED}"]
    record = tmp_path / f"store/job/attempts/{newest:04}.json"
    record.write_text("no record")
    assert start(f"--rdzv-endpoint={ASKED}") == ([f"--rdzv-endpoint={ASKED}"], "", "")


def test_what_run_has_moved_is_passed_on(tmp_path: Path) -> None:
    """And the command's own exit code comes back, for it is what the process becomes."""
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/sh\necho "$SPOTGUARD_RENDEZVOUS"; exit 3\n')
    torchrun.chmod(0o755)
    command = asking_first([str(torchrun), f"--rdzv-endpoint={ASKED}"], os.environ)
    command[-1] = "--rdzv-endpoint=node2:29400"
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == (f"{ASKED} node2:29400\n", "", 3)


@pytest.mark.parametrize(
    "words",
    [
        "python train.py --rdzv-endpoint node1:29400",
        "torchrun --standalone train.py",
        "torchrun --rdzv-endpoint 127.0.0.1:29400 train.py",
        "torchrun --rdzv-endpoint localhost:29400 train.py",
        "torchrun --rdzv-endpoint [::1]:29400 train.py",
        "torchrun --rdzv-endpoint node1:0 train.py",
        "no-such-folder/torchrun --rdzv-endpoint node1:29400 train.py",
    ],
)
def test_nobody_is_asked_where_it_could_change_nothing(words: str) -> None:
    assert asking_first(words.split(), {"PATH": str(Path(sys.executable).parent)}) == words.split()
