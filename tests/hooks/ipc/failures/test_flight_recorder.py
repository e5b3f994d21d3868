"""The newest collectives of a process, as torch's flight recorder has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

from spotguard.hooks.ipc.failures import flight_recorder
from spotguard.hooks.ipc.failures.flight_recorder import recorded_collectives

pytestmark = pytest.mark.torch

C10D = "torch._C._distributed_c10d"
RECORDS = any(hasattr(sys.modules.get(C10D), f"_dump_{name}_trace_json") for name in ("fr", "nccl"))


PROGRAM = Path(__file__).parent / "programs" / "waits.py"


@pytest.mark.skipif(not RECORDS, reason="this torch has no flight recorder")
def test_a_rank_that_waits_for_another_names_the_collective() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=True)
    before, ended, waits = map(json.loads, done.stdout.splitlines())
    assert before is None
    assert ended["waits_in"] is None
    assert ended["text"].startswith(
        "it waits in no collective; its last one was gloo:all_reduce, number 1 of process group"
    )
    assert waits["text"].startswith("it waits in gloo:all_reduce, number 2 of process group")
    assert (waits["waits_in"]["sizes"], waits["waits_in"]["tensors"]) == ([[3, 5]], 1)
    assert waits["newest"][-1] == waits["waits_in"]


def entry(number: int, **changes: Any) -> dict[str, Any]:
    plain = {
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "state": "completed",
        "retired": True,
        "time_created_ns": number,
        "input_sizes": [[2]],
    }
    return {**plain, **changes}


def records(monkeypatch: pytest.MonkeyPatch, nccl: Any, others: Any = ()) -> None:
    """Have torch's recorders hold these entries."""
    both = {"_dump_nccl_trace_json": nccl, "_dump_fr_trace_json": others}

    def dump(entries: Any) -> Any:
        return lambda includeCollectives, onlyActive: json.dumps({"entries": [*entries]}).encode()

    fake = SimpleNamespace(**{name: dump(entries) for name, entries in both.items()})
    monkeypatch.setitem(sys.modules, C10D, fake)


def test_the_oldest_that_has_not_ended_is_the_one_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started = entry(8, state="started", retired=False)
    records(monkeypatch, [entry(7), started, entry(9, state="scheduled", retired=False)], [entry(6)])
    seen = recorded_collectives()
    assert seen is not None
    assert seen.waits_in is not None
    assert (seen.waits_in.number, seen.waits_in.state) == (8, "started")
    assert [each.number for each in seen.newest] == [6, 7, 8, 9]


def test_a_record_is_small_however_much_torch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    large = entry(
        1, profiling_name="x" * 10_000, process_group=["y" * 10_000, "z"], input_sizes=[[2] * 20] * 99
    )
    records(monkeypatch, [{**large, "collective_seq_id": n, "time_created_ns": n} for n in range(500)])
    seen = recorded_collectives()
    assert seen is not None
    assert seen.newest[-1].number == 499
    assert seen.newest[-1].tensors == 99
    assert len(json.dumps(seen.record())) < 32 * 1024


@pytest.mark.parametrize("entries", [[], [{}], [entry(1, input_sizes=None)], None])
def test_records_of_another_torch_do_no_harm(monkeypatch: pytest.MonkeyPatch, entries: Any) -> None:
    records(monkeypatch, entries or [])
    if entries is None:
        monkeypatch.setitem(sys.modules, C10D, SimpleNamespace())
    assert recorded_collectives() is None


def test_a_ring_that_would_take_seconds_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    records(monkeypatch, [entry(1)])
    assert recorded_collectives() is not None
    monkeypatch.setattr(flight_recorder, "_LARGEST", 100)
    assert recorded_collectives() is None
    monkeypatch.undo()
    records(monkeypatch, [entry(1)])
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "1000000")
    assert recorded_collectives() is None
