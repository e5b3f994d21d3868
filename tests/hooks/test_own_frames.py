"""What a script that was refused shows: its own line, and the message."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from spotguard.hooks.arguments.speaker import without_our_frames
from spotguard.providers.errors import CheckpointError, NotFoundError, SpotguardError, StateError, UsageError


def refused(error: SpotguardError, cause: Exception | None) -> None:
    """As deep inside as a store is."""
    try:
        if cause is not None:
            raise cause
    except OSError as met:
        raise error from met
    raise error


@without_our_frames
def register(error: SpotguardError, cause: Exception | None) -> None:
    """What a script calls."""
    refused(error, cause)


def shown(error: SpotguardError, cause: Exception | None) -> str:
    with pytest.raises(type(error)) as caught:
        register(error, cause)
    assert caught.value is error
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (NotFoundError, OSError("errno")),
        (UsageError, OSError("errno")),
        (CheckpointError, None),
        (StateError, None),
    ],
)
def test_a_refusal_is_the_scripts_line_and_the_message(
    kind: type[SpotguardError], cause: Exception | None
) -> None:
    said = shown(kind("put s3://b/k: no such bucket"), cause)
    assert said.splitlines()[-1].endswith("put s3://b/k: no such bucket")
    assert "register(error, cause)" in said
    assert "in refused" not in said
    assert "errno" not in said


def test_the_cause_of_an_error_stays_available_to_programs() -> None:
    error, cause = NotFoundError("gone"), OSError("errno")
    shown(error, cause)
    assert error.__context__ is cause


@pytest.mark.parametrize("cause", [None, OSError("errno")])
def test_the_scripts_own_error_is_shown_first(cause: Exception | None) -> None:
    """`try: train() finally: guard.save()`: the failure of the training is what to look for."""

    def script() -> None:
        try:
            raise ValueError("loss is NaN at batch 17")
        finally:
            register(UsageError("guard.save() was called in the middle of a step"), cause)

    with pytest.raises(UsageError) as caught:
        script()
    said = "".join(traceback.format_exception(caught.value))
    assert "ValueError: loss is NaN at batch 17" in said
    assert said.splitlines()[-1].endswith("guard.save() was called in the middle of a step")
    assert "in refused" not in said
    assert "errno" not in said


def test_an_object_that_refuses_its_state_is_shown_with_its_own_frames() -> None:
    """They are the script's, or a library's that it uses: the line to mend is among them."""
    said = shown(StateError("scheduler: KeyError: 'gamma'"), OSError("from load_state_dict"))
    assert "in refused" in said
    assert "from load_state_dict" in said


def test_debug_mode_shows_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTGUARD_DEBUG", "1")
    said = shown(NotFoundError("gone"), OSError("errno"))
    assert "in refused" in said
    assert "errno" in said


def test_errors_that_are_not_ours_are_left_alone() -> None:
    """A bug, or no memory: the way it took is all there is to find it by."""

    @without_our_frames
    def broken() -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError) as caught:
        broken()
    assert any(frame.line == 'raise ZeroDivisionError("a bug")' for frame in traceback.extract_tb(caught.tb))


@pytest.mark.parametrize("way", ["register", "caught", "usage"])
def test_a_store_that_cannot_be_used_ends_a_script_in_two_lines(way: str, tmp_path: Path) -> None:
    """An error of the script's own, and one that it meets itself, keep their traceback."""
    call = {"register": "register(StoreError)", "caught": "1 / 0", "usage": "register(UsageError)"}[way]
    script = tmp_path / "train.py"
    script.write_text(
        "from spotguard.hooks.arguments.speaker import without_our_frames\n"
        "from spotguard.providers.errors import StoreError, UsageError\n"
        "@without_our_frames\n"
        "def register(kind):\n"
        "    raise kind('no directory can be made there')\n"
        "try:\n    register(StoreError)\nexcept StoreError:\n    pass\n"
        f"{call}\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    if way == "register":
        assert lines == [
            "spotguard: error: no directory can be made there",
            f"  at {script}:10: {call}",
        ]
    else:
        assert lines[0] == "Traceback (most recent call last):"
