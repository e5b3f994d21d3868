"""`spotguard export`: read back by stock tools, bit for bit; and where it fails, nothing is there."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load  # noqa: E402

import spotguard  # noqa: E402
from spotguard.cli.commands.checkpoints.export import appearing  # noqa: E402
from spotguard.cli.main import main  # noqa: E402
from spotguard.providers.errors import UsageError  # noqa: E402
from spotguard.providers.stores.factory import open_store  # noqa: E402
from tests.fakes.cut import Cut, grid  # noqa: E402
from tests.fakes.four import saved_by_four, trained  # noqa: E402
from tests.hooks.restore.interop.programs.load import Small  # noqa: E402

pytestmark = pytest.mark.torch

ODD = {
    "cube": torch.rand(5, 4, 6),
    "flat": torch.rand(7).to(torch.bfloat16),
    "waves": torch.rand(3, 2, dtype=torch.complex64),
    "scalar": torch.tensor(-2.5, dtype=torch.float64),
    "none": torch.rand(0, 4),
}


@pytest.fixture
def store(tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    return (tmp_path / "store").as_uri()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def export(*words: object) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return main(["export", *map(str, words)])


def test_the_weights_are_one_file_that_a_plain_model_loads(
    store: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the keys of its state dict, a tied weight under both of its own."""
    model, optimizer = trained()
    saved_by_four(store, model, optimizer)
    assert export(store, "--to", "safetensors", out / "model.safetensors", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["tensors"], said["path"]) == (7, 6, str(out / "model.safetensors"))
    assert said["bytes"] == (out / "model.safetensors").stat().st_size
    fresh = Small()
    fresh.load_state_dict(load_file(out / "model.safetensors"))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in fresh.state_dict().items())
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "spotguard": "run run, checkpoint 000000007-0001-0000"}
    assert os.listdir(out) == ["model.safetensors"]


def test_all_tensors_are_in_it_by_their_names(store: str, out: Path) -> None:
    """Of any shape, cut into a grid; what safetensors has no word for as its bytes, and named in the header."""
    Cut(ODD, grid, private={"rng": torch.arange(3)}).write(open_store(store))
    assert export(store, "--to", "safetensors", out / "all", "--all") == 0
    found = load_file(out / "all")
    assert found.keys() == {*ODD, *(f"@{rank:05d}/rng" for rank in range(4))}
    with safe_open(out / "all", "pt") as file:
        assert json.loads(file.metadata()["dtypes"]) == {"waves": "complex64"}
    found["waves"] = found["waves"].view(torch.complex64)
    assert all(torch.equal(found[name], tensor) for name, tensor in ODD.items())


def test_one_file_needs_no_torch(store: str, out: Path) -> None:
    """Where checkpoints are looked after there may be none."""
    saved_by_four(store, *trained())
    code = "import sys; from spotguard.cli.main import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    words = [sys.executable, "-c", code, "export", store, "--to", "safetensors", str(out / "x")]
    path = os.pathsep.join([*sys.path, str(Path(spotguard.__file__).parents[1])])
    subprocess.run(words, check=True, timeout=100, env={**os.environ, "PYTHONPATH": path})
    assert len(load_file(out / "x")) == 6


def test_stock_dcp_load_reads_the_folder(store: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, moments and values that are no tensors; and nothing in it needs us to be installed."""
    model, optimizer = trained()
    saved_by_four(store, model, optimizer, notes={"pair": (torch.ones(2), {3}), "seen": 12})
    assert export(store, "--to", "dcp", out / "plain") == 0
    assert "every checksum agreed" in capsys.readouterr().out
    for path in (out / "plain").iterdir():
        assert b"spotguard" not in path.read_bytes()
    fresh = Small()
    other = torch.optim.AdamW(fresh.parameters(), lr=0.5)
    state: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(fresh, other), strict=True))
    state["notes"] = {"pair": 0, "seen": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP's, about being alone
        load(state, storage_reader=FileSystemReader(out / "plain"))
        dcp_to_torch_save(out / "plain", out / "torch.pt")
    wanted: Mapping[str, Any] = dict(
        zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)
    )
    assert str(state["optimizer"]) == str(wanted["optimizer"])
    assert all(torch.equal(state["model"][key], value) for key, value in wanted["model"].items())
    assert state["notes"]["seen"] == 12
    assert torch.equal(state["notes"]["pair"][0], torch.ones(2))
    whole = torch.load(out / "torch.pt", weights_only=False)
    assert whole.keys() == {"model", "optimizer", "notes"}
    assert whole["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
    assert sorted(os.listdir(out)) == ["plain", "torch.pt"]


def test_a_tensor_that_stands_in_no_tree_is_not_lost(store: str, out: Path) -> None:
    """Nobody is locked in; but what each rank has of its own is nobody else's."""
    Cut(ODD, grid, private={"rng": torch.arange(3)}).write(open_store(store))
    assert export(store, "--to", "dcp", out / "plain") == 0
    state = {name: torch.zeros_like(tensor) for name, tensor in ODD.items()}
    reader = FileSystemReader(out / "plain")
    assert reader.read_metadata().state_dict_metadata.keys() == ODD.keys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP's, about being alone
        load(state, storage_reader=reader)
    assert all(torch.equal(state[name], tensor) for name, tensor in ODD.items())


@contextmanager
def little_room(nbytes: int) -> Iterator[None]:
    """No file may grow larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_a_failed_export_leaves_nothing(
    form: str, store: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bit flipped in the store; no room."""
    whole = Cut(
        {"model/a": torch.rand(500, 64)}, state={"model": {"a": {"$": "tensor", "name": "model/a"}}}
    ).write(open_store(store))
    with little_room(20_000):
        assert export(store, "--to", form, out / "x") == 1
    assert "x cannot be written: File too large; nothing was left there" in capsys.readouterr().err
    assert os.listdir(out) == []
    rank, chunk = whole.tensors["model/a"].chunks[2]
    path = tmp_path / "store" / whole.manifests[rank].object_key(chunk.object)
    data = bytearray(path.read_bytes())
    data[chunk.end - 1] ^= 1
    path.write_bytes(data)
    assert export(store, "--to", form, out / "x") == 1
    assert "(model/a) are damaged" in capsys.readouterr().err
    assert os.listdir(out) == []


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
def test_an_interrupted_export_leaves_nothing(folder: bool, out: Path) -> None:
    """By SIGTERM, as at a shutdown; and what took the name meanwhile keeps it."""

    def export_until(then: Callable[[], object]) -> None:
        with appearing(out / "x") as path:
            if folder:
                path.mkdir()
            else:
                path.write_text("all of it")
            then()

    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        export_until(lambda: signal.raise_signal(signal.SIGTERM))
    assert os.listdir(out) == []
    assert signal.getsignal(signal.SIGTERM) is handler
    with pytest.raises(UsageError, match="is there already"):
        export_until(lambda: (out / "x").write_text("theirs"))
    assert os.listdir(out) == ["x"]
    assert (out / "x").read_text() == "theirs"


def test_usage_errors_of_export_come_before_anything_is_written(
    store: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Cut({"ema": torch.rand(3)}).write(open_store(store))
    (out / "there").write_text("mine")
    for words, code, message in (
        ([], 2, "--to is missing"),
        (["--to", "pt", out / "x"], 2, "--to 'pt': expected one of dcp, safetensors"),
        (["--to", "dcp", out / "there"], 2, "is there already"),
        (["--to", "safetensors", out / "there"], 2, "is there already"),
        (["--to", "dcp", out / "no" / "x"], 2, "does not exist: make it first"),
        (["--to", "dcp", out / "x", "--all"], 2, "--all is for safetensors"),
        (["--to", "safetensors", out / "x"], 1, "holds no module's weights"),
        (["--to", "safetensors", out / "x", "--step", "3"], 1, "no checkpoint of step 3"),
    ):
        assert export(store, *words) == code
        assert message in capsys.readouterr().err
    assert os.listdir(out) == ["there"]
    assert (out / "there").read_text() == "mine"
