"""`dcp.load` from a checkpoint of this format: every value under DCP's own name, every tensor into any mesh."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load

from spotguard import StorageReader
from spotguard.hooks.checkpoint.format.manifest import private_name
from spotguard.providers.errors import CheckpointError, UsageError
from spotguard.providers.stores.factory import open_store
from tests.fakes.cut import Cut, columns
from tests.fakes.four import saved_by_four, trained
from tests.hooks.restore.interop.programs import load as program

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[4]


@pytest.fixture
def url(folder: Path) -> str:
    return folder.as_uri()


def loaded(state: dict[str, Any], url: str, step: int | None = None) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP's, about being alone
        load(state, storage_reader=StorageReader(url, "run", step))
    return state


@pytest.mark.slow
def test_two_ranks_of_fsdp2_load_what_four_have_saved(url: str, tmp_path: Path) -> None:
    """Weights, moments and the optimizer's numbers, bit for bit; see the program for what else."""
    model, optimizer = trained()
    saved_by_four(url, model, optimizer)
    expected = {f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    for name, param in model.named_parameters():
        expected |= {f"optimizer.{name}.{word}": t.clone() for word, t in optimizer.state[param].items()}
    save_file(expected, tmp_path / "expected")
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)]),
    }
    words = [sys.executable, "-m", "tests.hooks.restore.interop.programs.load"]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / "meet"), url, str(tmp_path / "expected")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(program.WORLD)
    ]
    try:
        said = [rank.communicate(timeout=100)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said


def test_a_single_process_loads_what_torch_gives_it(url: str) -> None:
    """`get_state_dict`, flat or nested, and values that are no tensors: with their types."""
    model, optimizer = trained()
    notes = {
        "words": deque("spot", 9),
        "pair": (torch.ones(2), {3}),
        "list": [torch.zeros(2), 5],
        "deep": {"a": None},
    }
    scheduler = {"class": "StepLR", "state": {"step_size": 3}}
    saved_by_four(url, model, optimizer, notes=notes, scheduler=scheduler)
    assert loaded({"scheduler": {"step_size": 0}}, url) == {"scheduler": {"step_size": 3}}
    for flat in (False, True):
        fresh = program.Small()
        other = torch.optim.AdamW(fresh.parameters(), lr=0.5)
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        weights, moments = get_state_dict(fresh, other, options=options)
        state = loaded({"model": weights, "optimizer": moments}, url)
        wanted: Any = get_state_dict(model, optimizer, options=options)
        assert all(torch.equal(state["model"][key], value) for key, value in wanted[0].items())
        assert str(state["optimizer"]) == str(wanted[1])
    blank = {"words": 0, "pair": 0, "list": [torch.ones(2), 0], "deep": {"a": 1}}
    found = loaded({"notes": blank}, url)["notes"]
    assert found["words"] == notes["words"]
    assert found["words"].maxlen == 9
    assert torch.equal(found["pair"][0], torch.ones(2))
    assert found["pair"][1] == {3}
    assert torch.equal(found["list"][0], torch.zeros(2))
    assert found["list"][1] == 5
    assert found["deep"] == {"a": None}


def test_private_state_is_the_first_ranks_and_all_of_it_by_name(url: str) -> None:
    """A buffer that nobody shares, as FSDP2's are."""
    cut = Cut({}, world=3, private={"model/seen": torch.tensor([1.0])})
    store = open_store(url)
    states = [
        {
            "model": {"seen": {"$": "tensor", "name": private_name(rank, "model/seen")}},
            "notes": {"rank": rank},
        }
        for rank in range(3)
    ]
    for rank, state in enumerate(states):
        cut.state = state
        cut.private = {"model/seen": torch.tensor([float(rank)])}
        cut.write_rank(store, rank)
    state = {
        "model": {"seen": torch.tensor([9.0])},
        "notes": {"rank": -1},
        "@00002/model/seen": torch.zeros(1),
    }
    assert loaded(state, url) == {
        "model": {"seen": torch.tensor([0.0])},
        "notes": {"rank": 0},
        "@00002/model/seen": torch.tensor([2.0]),
    }


def test_only_what_is_asked_for_is_read(url: str, folder: Path) -> None:
    """One tensor of two, though the other's bytes are damaged."""
    cut = Cut({"model/a": torch.rand(40, 3), "model/b": torch.rand(2**18)}, columns, world=2)
    whole = cut.write(open_store(url))
    _, chunk = whole.tensors["model/b"].chunks[0]
    path = folder / whole.manifests[0].object_key(chunk.object)
    data = bytearray(path.read_bytes())
    data[chunk.end - 1] ^= 1
    path.write_bytes(data)
    state = loaded({"model/a": torch.zeros(40, 3)}, url)
    assert torch.equal(state["model/a"], cut.tensors["model/a"])
    with pytest.raises(CheckpointException, match=r"model/b\) are damaged.*pass its step"):
        loaded({"model/b": torch.zeros(2**18)}, url)


def test_a_step_is_chosen_and_what_is_not_there_is_said(url: str) -> None:
    store = open_store(url)
    for step in (3, 9):
        Cut({"a": torch.full((4,), float(step))}, step=step).write(store)
    assert loaded({"a": torch.zeros(4)}, url)["a"][0] == 9
    assert loaded({"a": torch.zeros(4)}, url, step=3)["a"][0] == 3
    with pytest.raises(CheckpointError, match="run run has no complete checkpoint of step 5"):
        StorageReader(url, "run", 5).read_metadata()
    with pytest.raises(UsageError, match=r"run id '\.\./x'"):
        StorageReader(url, "../x")
    with pytest.raises(UsageError, match="checkpoint_id 'x' was passed: leave it out"):
        StorageReader(url, "run").reset("x")


def test_ranks_that_found_different_checkpoints_load_none(url: str) -> None:
    """One was committed between their two looks."""
    plans = []
    for step in (1, 2):
        Cut({"a": torch.rand(4)}, step=step).write(open_store(url))
        reader = StorageReader(url, "run")
        reader.read_metadata()
        plans.append(reader.prepare_local_plan(LoadPlan([])))
    with pytest.raises(CheckpointError, match="different checkpoints"):
        reader.prepare_global_plan(plans)
    assert reader.prepare_global_plan(plans[1:]) == plans[1:]
