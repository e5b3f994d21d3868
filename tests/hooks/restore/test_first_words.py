"""What is said when training begins: once, by the first rank, and not where `spotguard run` says it itself."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.attempts import attempt_record
from spotguard.hooks.guard import Guard, parts
from spotguard.hooks.guard.position import registration
from spotguard.hooks.restore import startup
from spotguard.hooks.restore.proof_file import NEVER, command
from spotguard.hooks.restore.startup import TESTED_TORCH, StartupMessages
from spotguard.providers.stores.factory import open_store
from tests.fakes.printed import printed
from tests.fakes.training import guarded, small

pytestmark = pytest.mark.torch
DOCS = Path(__file__).parents[3] / "docs" / "reference"

BEGINS = """
import os, types
os.environ["SPOTGUARD_PARENT"] = {!r}
from spotguard.hooks.control.agent_session import AgentSession
from spotguard.hooks.restore.startup import StartupMessages
shown = AgentSession.shows_here.fget(types.SimpleNamespace(guarded={}))
StartupMessages(True, "file:///s").restored("r", 0, shown=shown)
"""
LINE = "spotguard: run r begins at step 0 in file:///s\n"


def loop(guard: Guard, total: int) -> None:
    for _ in guard.steps(total):
        pass
    guard.save()


def test_a_run_says_where_it_begins_and_that_nothing_is_left(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="spotguard")
    for begins, total, left in (
        (0, 2, ""),
        (2, 3, ""),
        (3, 3, "guard.steps(3) has nothing left to do: run run has done 3 steps"),
    ):
        caplog.clear()
        with guarded(folder, small().values) as guard:
            loop(guard, total)
        words = f"resumed from step {begins} of run run" if begins else "run run begins at step 0"
        assert caplog.messages.count(f"{words} in {folder.as_uri()}") == 1
        said = [line for line in caplog.messages if " has nothing left to do: run run " in line]
        assert len(said) == bool(left)
        assert all(left in line for line in said)
        # Each of the places that may have said it: of them the variable is the last to be asked.
        assert all(
            line.endswith("another run id (run_id of register, --run-id, or SPOTGUARD_RUN_ID)")
            for line in said
        )


def test_the_run_that_training_begins_from_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with guarded(folder, small().values, "base") as guard:
        loop(guard, 2)
    caplog.set_level("INFO", logger="spotguard")
    with guarded(folder, small().values, "own") as guard:
        guard.restore(run_id="base")
    assert f"resumed from step 2 of run base in {folder.as_uri()}" in caplog.messages


def test_other_ranks_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="spotguard")
    words = StartupMessages(False, "file:///s")
    words.restored("r", 3, shown=False)
    words.finished("r", 3, 3)
    assert caplog.messages == []


def test_the_first_attempt_of_unproven_code_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the line of its begin; the attempt's record and the agent have it too, also later."""
    monkeypatch.setattr(parts, "judged", lambda values: NEVER)
    caplog.set_level("INFO", logger="spotguard")
    begins = f"run run begins at step 0 in {folder.as_uri()}"
    for attempt, line in ((1, f"{begins}; {NEVER}, so type: {command()}"), (2, begins)):
        caplog.clear()
        with guarded(folder, small().values) as guard:
            guard.restore()
            assert registration(guard._parts).proof == NEVER
        assert caplog.messages.count(line) == 1
        record = attempt_record(open_store(folder.as_uri()), "run", attempt)
        assert record is not None
        assert record.info["proof"] == NEVER


def test_code_that_was_proven_inexact_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for verdict, first, attempt, said in (
        ("INEXACT over 50 steps", True, 1, 1),
        ("UNSURE over 50 steps", True, 1, 1),
        ("INEXACT over 50 steps", True, 2, 0),
        ("INEXACT over 50 steps", False, 1, 0),
        ("EXACT over 50 steps", True, 1, 0),
    ):
        caplog.clear()
        StartupMessages(first, "file:///s", verdict).restored("r", 0, shown=False, attempt=attempt)
        warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert warned == [f"this code was proven {verdict}: {command()} names the cause"] * said


def test_run_says_it_at_the_same_terminal_and_a_service_does_not() -> None:
    """A `run` that was killed says nothing any more either."""
    rows = [(True, "r:/s.sock", ""), (False, "r:/s.sock", LINE), (True, "", LINE), (False, "", LINE)]
    logged = "import logging; logging.basicConfig(level=logging.INFO, format='spotguard: %(message)s')"
    for first in ("", logged):
        said = printed([first + BEGINS.format(parent, guarded) for guarded, parent, _ in rows])
        assert [(*row[:2], line) for row, line in zip(rows, said, strict=True)] == rows


def test_a_torch_newer_than_the_tested_ones_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = ".".join(map(str, TESTED_TORCH))
    assert f"| torch, several ranks | 2.8 and newer | {newest} |" in (DOCS / "compatibility.md").read_text()
    for version, warns in (
        (f"{newest}.1", False),
        ("2.9.1", False),
        (f"{newest}0.0a0+git", True),
        ("3.0", True),
        ("", False),
    ):
        caplog.clear()
        monkeypatch.setattr(startup, "versions", lambda version=version: {"torch": version})
        StartupMessages(True, "file:///s").restored("r", 0, shown=False)
        assert (f"torch {version} is newer than {newest}" in caplog.text) == warns
