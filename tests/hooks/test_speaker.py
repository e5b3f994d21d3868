"""A warning on stderr says who speaks, unless the script has set up logging in its own way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A script that logs at every level, after `{}`.
LOGS = """
import logging
from spotguard.hooks.arguments.speaker import name_the_speaker
{}
for logger in (logging.getLogger("spotguard"), logging.getLogger("spotguard.providers")):
    logger.info("quiet")
    logger.warning("step %d", 3)
logging.getLogger("else").warning("not ours")
"""
NAMED = "spotguard: step 3\nspotguard: step 3\nnot ours\n"


def printed(code: str, **env: str) -> str:
    """What a process of its own prints on stderr: pytest has set up logging in this one."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WORLD_SIZE": "", "RANK": "", **env},
        capture_output=True,
        text=True,
        cwd=ROOT / "packaging",
        check=True,
        timeout=100,
    )
    assert done.stdout == ""
    return done.stderr


def test_a_warning_names_its_speaker_and_is_printed_once() -> None:
    assert printed(LOGS.format("name_the_speaker(); name_the_speaker()")) == NAMED


def test_a_rank_names_itself() -> None:
    """The rank of the process group, else that of the launcher; in a job of one process there is none."""
    ranked = NAMED.replace("spotguard:", "spotguard[rank 3]:")
    launched = {"WORLD_SIZE": "4", "RANK": "3"}
    assert printed(LOGS.format("name_the_speaker(); name_the_speaker(3)")) == ranked
    assert printed(LOGS.format("name_the_speaker()"), **launched) == ranked
    assert printed(LOGS.format("name_the_speaker(3)"), WORLD_SIZE="4", RANK="1") == ranked
    assert printed(LOGS.format("name_the_speaker()"), WORLD_SIZE="1", RANK="0") == NAMED


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("logging.basicConfig(format='%(message)s')", "step 3\nstep 3\nnot ours\n"),
        (
            "logging.basicConfig(format='%(name)s %(message)s')",
            "spotguard step 3\nspotguard.providers step 3\nelse not ours\n",
        ),
        ("logging.getLogger('spotguard').addHandler(logging.NullHandler())", "not ours\n"),
        ("logging.getLogger('spotguard').setLevel('ERROR')", "not ours\n"),
        ("logging.getLogger('spotguard').setLevel('DEBUG')", NAMED),
        ("logging.lastResort.setLevel('ERROR')", ""),
        ("logging.lastResort = None", 'No handlers could be found for logger "else"\n'),
        ("import sys; sys.stderr = None", ""),
    ],
)
def test_the_scripts_own_logging_decides(setting: str, shown: str) -> None:
    """Before spotguard is used, or after."""
    for order in (f"{setting}\nname_the_speaker()", f"name_the_speaker()\n{setting}"):
        assert printed(LOGS.format(order)) == shown


def test_the_traceback_of_an_error_follows_its_line() -> None:
    code = (
        "import logging\nfrom spotguard.hooks.arguments.speaker import name_the_speaker\nname_the_speaker()\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.getLogger('spotguard').exception('internal error')\n"
    )
    lines = printed(code).splitlines()
    assert lines[:2] == ["spotguard: internal error", "Traceback (most recent call last):"]
    assert lines[-1].startswith("ZeroDivisionError")


#: A script that configures nothing, and whose agent is gone.
ALONE = """
import time, spotguard
{}
time.sleep(0.5)
"""


def test_on_notice_names_the_speaker(tmp_path: Path) -> None:
    said = printed(ALONE.format("spotguard.on_notice(print)"), SPOTGUARD_SOCKET=str(tmp_path / "gone.sock"))
    assert said.startswith("spotguard: unguarded: no agent answers on ")
    assert said.count("\n") == 1


@pytest.mark.torch
def test_register_names_the_speaker(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    register = "import torch; spotguard.register(model=torch.nn.Linear(1, 1)).close()"
    said = printed(
        ALONE.format(register),
        SPOTGUARD_SOCKET=str(tmp_path / "gone.sock"),
        SPOTGUARD_STORE=(tmp_path / "store").as_uri(),
    )
    assert [line.split(" ")[:2] for line in sorted(said.splitlines())] == [
        ["spotguard:", "from"],  # now on a save waits for the next guard.step()
        ["spotguard:", "unguarded:"],
    ]
