"""One rule for the names of runs, whoever asks."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spotguard.agent.config import parsers
from spotguard.agent.ipc.paths import LONGEST, default_socket
from spotguard.hooks.arguments.names import default_run_id
from spotguard.hooks.checkpoint.format.keys import attempt_key, check_run_id
from spotguard.providers.errors import UsageError
from spotguard.providers.run_id import RUN_ID, is_run_id
from spotguard.providers.stores.base import check_key

DOORS: dict[str, Callable[[str], object]] = {
    "--run-id": lambda text: parsers.run_id("--run-id", text),
    "the socket": lambda text: default_socket(text, {}, 0),
    "register": check_run_id,
}


@given(st.text("aZ0_.-/ ä\n\0", max_size=4) | st.text("aZ0_.-", min_size=60, max_size=70))
@example("a" * 64)
@example("a" * 65)
@example("a\n")
def test_every_door_keeps_the_one_rule(text: str) -> None:
    """What one lets in no other refuses, and all of them say the same words."""
    for door, enter in DOORS.items():
        if is_run_id(text):
            enter(text)
        else:
            with pytest.raises(UsageError) as refused:
                enter(text)
            assert str(refused.value).endswith(RUN_ID), door


def test_the_longest_name_fits_wherever_names_stand() -> None:
    """In a socket's path, below the longest folder that systemd makes, and in a key."""
    longest = "a" * 64
    assert is_run_id(longest)
    assert len(os.fsencode(f"/run/user/{2**32 - 2}/spotguard/{longest}.sock")) <= LONGEST
    assert check_key(attempt_key(longest, 10**15 - 1))


#: What a scheduler says of its job, and what somebody else may have put there.
JOBS = st.dictionaries(
    st.sampled_from(["SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NAME"]),
    st.integers(0, 2**32).map(str) | st.text(max_size=3),
)


@given(st.lists(st.text(max_size=90), max_size=4), st.text(max_size=20), JOBS)
@example(["python", "a" * 50 + ".py"], "/", {"SLURM_JOB_ID": str(2**32)})
def test_the_names_that_we_choose_keep_it_too(command: list[str], folder: str, env: dict[str, str]) -> None:
    """Whatever the script is called, and whatever a scheduler says."""
    assert is_run_id(default_run_id(command, folder, env))
