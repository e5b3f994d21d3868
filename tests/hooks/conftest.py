"""What the tests of the hook side share: one thread for torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

#: What imports torch at its top: not looked at where there is none.
NEEDS_TORCH = [
    *(f"agreement/test_{name}.py" for name in ("channel", "endings", "torch_group")),
    "state/test_*.py",
    *(
        f"checkpoints/test_{name}.py"
        for name in (
            "crew",
            "draft",
            "frames",
            "idle",
            "reader",
            "shares",
            "together",
            "together_written",
            "work",
            "writer",
            "writer_again",
            "writer_outage",
            "writer_second_look",
        )
    ),
    *(
        f"test_{name}.py"
        for name in (
            "arguments",
            "begin_anew",
            "checkpointer",
            "damage",
            "damage_meanwhile",
            "dcp",
            "edit_through_data",
            "emergency",
            "emergency_any_link",
            "emergency_frozen",
            "failed_register_leaves_hooks",
            "frozen_weights_stop_training",
            "going_back",
            "guard",
            "last_moment",
            "last_upload_at_exit",
            "legitimate_loops",
            "less",
            "malformed",
            "manual_save_hangs_after_drill",
            "meetings",
            "misuse_variants",
            "mutations",
            "namesakes",
            "never_steps",
            "next_save",
            "optimizer_made_anew",
            "outages",
            "promotion",
            "published",
            "ranks",
            "refused_restore_leaves_gate_dirty",
            "rehearsal",
            "report",
            "restore",
            "restored_twice",
            "rights",
            "saver",
            "saver_background",
            "saver_second_word",
            "saver_thread_dies",
            "secrets_of_argv_in_store",
            "share",
            "threads_at_exit_312",
            "tidying",
        )
    ),
]
collect_ignore_glob = NEEDS_TORCH if find_spec("torch") is None else []


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Bits are compared, and the number of threads is part of them."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
