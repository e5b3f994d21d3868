"""`spotguard ls` and `inspect` say what the next start restores: as restore decides it, whatever the markers say."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spotguard.cli import main
from spotguard.cli.commands.checkpoints.inspect import _table as tensors_of
from spotguard.cli.commands.checkpoints.ls import _table, lines_of
from spotguard.cli.output import short_moment
from spotguard.hooks.checkpoint.format.keys import MARKER, manifest_name
from spotguard.hooks.checkpoint.format.manifest import FORMAT
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.file import FileStore
from tests.fakes.checkpoint import FOREIGN, Save

Story = Callable[[BlobStore, Path], None]


def only_weights(store: BlobStore, root: Path) -> None:
    Save(step=10, level="weights").write(store)


def weights_far_newer(store: BlobStore, root: Path) -> None:
    Save(step=10).write(store)
    Save(step=1010, save=1, level="weights").write(store)


def weights_a_little_newer(store: BlobStore, root: Path) -> None:
    Save(step=10).write(store)
    Save(step=1009, save=1, level="weights").write(store)


def all_but_extras_far_newer(store: BlobStore, root: Path) -> None:
    Save(step=10).write(store)
    Save(step=111, save=1, level="partial-extras").write(store)


def all_but_extras_a_little_newer(store: BlobStore, root: Path) -> None:
    Save(step=10).write(store)
    Save(step=110, save=1, level="partial-extras").write(store)


def a_suspect_one(store: BlobStore, root: Path) -> None:
    Save(step=10).write(store)
    Save(step=20, save=1, suspect={1: "the loss is nan since step 15"}).write(store)


def a_damaged_marker(store: BlobStore, root: Path) -> None:
    save = Save(step=20)
    Save(step=10).write(store)
    save.write(store)
    path = root / save.prefix / MARKER
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def a_reference_to_what_is_gone(store: BlobStore, root: Path) -> None:
    """Its own marker and files agree."""
    Save(step=10).write(store)
    base = Save(step=20, save=1)
    manifests = base.write(store)
    Save(step=30, save=2, base=manifests).write(store)
    store.delete([manifests[0].object_key(0)])


def a_newer_format(store: BlobStore, root: Path) -> None:
    Save(step=10).write(store)
    Save(step=20).write_foreign(store, FORMAT + 1)


def no_format(store: BlobStore, root: Path) -> None:
    Save(step=10).write(store)
    Save(step=20).write_foreign(store, None)


def a_newer_format_further_back(store: BlobStore, root: Path) -> None:
    a_newer_format(store, root)
    Save(step=30).write(store)


STORIES: list[tuple[Story, int | None, dict[int, str]]] = [
    (only_weights, 10, {10: "complete"}),
    (weights_far_newer, 1010, {1010: "complete", 10: "complete"}),
    (weights_a_little_newer, 10, {1009: "complete", 10: "complete"}),
    (all_but_extras_far_newer, 111, {111: "complete", 10: "complete"}),
    (all_but_extras_a_little_newer, 10, {110: "complete", 10: "complete"}),
    (a_suspect_one, 20, {20: "complete", 10: "complete"}),
    (a_damaged_marker, 20, {20: "complete", 10: "complete"}),
    (a_reference_to_what_is_gone, 10, {30: "damaged", 20: "damaged", 10: "complete"}),
    (a_newer_format, None, {20: "unsupported", 10: "complete"}),
    (no_format, None, {20: "unsupported", 10: "complete"}),
    (a_newer_format_further_back, 30, {30: "complete", 20: "unsupported", 10: "complete"}),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("story", "taken", "statuses"), STORIES, ids=[story.__name__ for story, _, _ in STORIES]
)
def test_ls_marks_what_a_restore_takes(
    story: Story, taken: int | None, statuses: dict[int, str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table and in JSON; `inspect` shows the same one, or says why a restore refuses."""
    story(FileStore(root), root)
    found = listed(capsys, root.as_uri())
    assert {each["step"]: each["status"] for each in found} == statuses
    assert [each["step"] for each in found if each["next"]] == ([] if taken is None else [taken])
    assert main.main(["ls", root.as_uri()]) == 0
    marked = [line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith(">")]
    assert [int(line.split()[2]) for line in marked] == ([] if taken is None else [taken])

    assert main.main(["inspect", root.as_uri(), "--json"]) == (1 if taken is None else 0)
    out, err = capsys.readouterr()
    if taken is None:
        assert any(refusal in err for refusal in FOREIGN.values())
    else:
        assert json.loads(out)["step"] == taken


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main.main(["ls", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["checkpoints"]


@pytest.mark.parametrize("marker", [True, False])
def test_a_suspect_checkpoint_shows_why(marker: bool, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its marker, and without one by its manifests: one rank's is enough."""
    why = "the loss is nan since step 15 on rank 1"
    Save(step=10).write(FileStore(root))
    Save(step=20, save=1, suspect={1: "the loss is nan since step 15"}).write(FileStore(root), marker=marker)
    assert [each["suspect"] for each in listed(capsys, root.as_uri())] == [why, ""]
    assert main.main(["ls", root.as_uri()]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"complete, suspect: {why}" in text
    assert text.count("suspect") == 1
    for step, suspect in ((20, why), (10, "")):
        words = ["inspect", root.as_uri(), "--step", str(step)]
        assert main.main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["suspect"] == suspect
        assert main.main(words) == 0
        assert (f"  suspect: {why}\n" in capsys.readouterr().out) is bool(suspect)


@pytest.mark.parametrize("marker", [True, False])
def test_values_that_were_left_out_are_shown(
    marker: bool, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank's, with its number."""
    Save(step=10, left_out={1: ("notes.path: pathlib.Path",)}).write(FileStore(root), marker=marker)
    named = "notes.path: pathlib.Path on rank 1"
    assert [each["left_out"] for each in listed(capsys, root.as_uri())] == [[named]]
    assert main.main(["ls", root.as_uri()]) == 0
    assert f"complete: left out {named}" in " ".join(capsys.readouterr().out.split())
    assert main.main(["inspect", root.as_uri(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == [named]
    assert main.main(["inspect", root.as_uri()]) == 0
    assert f"  left out: {named}\n" in capsys.readouterr().out


def test_each_run_has_its_own_mark(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = FileStore(root)
    for run_id in ("a", "b"):
        for number in (1, 2):
            Save(run_id=run_id, step=10 * number, save=number).write(store)
    found = listed(capsys, root.as_uri())
    assert [(each["run_id"], each["step"]) for each in found if each["next"]] == [("a", 20), ("b", 20)]


def test_a_checkpoints_url_lists_that_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the mark where the next start takes it, and without it where it takes another."""
    store, older, newer = FileStore(root), Save(step=10), Save(step=20, save=1)
    older.write(store)
    newer.write(store)
    for save, taken in ((older, False), (newer, True)):
        (line,) = listed(capsys, (root / save.prefix).as_uri())
        assert (line["step"], line["next"]) == (save.step, taken)
    gone = Save(step=30).prefix
    assert main.main(["ls", (root / gone).as_uri()]) == 0
    assert capsys.readouterr().out.startswith("no checkpoint 000000030-0001-0000 of run run in file://")


def table(store: BlobStore, run_id: str, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(_table(lines_of(store, run_id), width, now=3600.0))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (58, "run step checkpoint status"),
        (80, "run step checkpoint saved made for status"),  # the picture of the README
        (91, "run step checkpoint saved size made for status"),
        (104, "run step checkpoint saved size ranks made for status"),
        (200, "run step checkpoint saved size ranks made for status"),
    ],
)
def test_a_narrow_terminal_drops_the_less_important_columns_first(
    width: int, columns: str, root: Path
) -> None:
    """What is copied from there must work: no name is cut."""
    save = Save(run_id="train-737e0bd1", step=400_000, kind="emergency")
    save.write(FileStore(root))
    header, line = table(FileStore(root), save.run_id, width)
    assert header.split() == columns.split()
    assert line.split()[:4] == [">", save.run_id, str(save.step), str(save.name)]
    assert line.rstrip().endswith("complete")


@pytest.mark.parametrize("width", [40, 80])
def test_the_step_is_shown_however_long_a_run_is_called(width: int, root: Path) -> None:
    """The name goes on in the next line then, and is whole."""
    save = Save(run_id="x" * 64, step=400_000)
    save.write(FileStore(root))
    header, *lines = table(FileStore(root), save.run_id, width)
    assert header.split() == ["run", "step", "status"]
    assert " 400000 " in lines[0]
    assert "complete" in lines[0]
    assert sum(line.count("x") for line in lines) == 64


@pytest.mark.parametrize("width", [60, 200])
def test_missing_extras_are_shown_on_a_narrow_terminal_too(width: int, root: Path) -> None:
    """By its level, without which it would look as good as any."""
    Save(step=10).write(FileStore(root))
    Save(step=20, save=1, level="partial-extras").write(FileStore(root))
    _, lower, full = table(FileStore(root), "run", width)
    assert lower.rstrip().endswith(" complete (partial-extras)")
    assert full.rstrip().endswith(" complete")


@pytest.mark.parametrize("number", FOREIGN)
def test_each_command_refuses_another_format_and_none_deletes_it(
    number: int | None, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its number, with what to do; `prune` leaves the checkpoint and what is older than it alone."""
    Save(step=10).write(FileStore(root))
    Save(step=20).write_foreign(FileStore(root), number)
    before = sorted(root.rglob("*"))
    out = tmp_path / "out"
    commands = [["inspect"], ["verify"], ["export", "--to", "safetensors", f"{out}.safetensors"]]
    if importlib.util.find_spec("torch"):  # without it the export to DCP ends before it reads anything
        commands.append(["export", "--to", "dcp", str(out)])
    for words in commands:
        assert main.main([*words, root.as_uri()]) == 1
        said = "".join(capsys.readouterr())
        assert FOREIGN[number] in said
    assert main.main(["prune", root.as_uri(), "--keep", "1"]) == 0
    assert sorted(root.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [root]


def test_each_command_says_what_a_checkpoint_lacks(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people and in JSON: the ranks whose extras are missing."""
    Save(step=20, world=3, level="partial-extras").write(FileStore(root))
    (line,) = listed(capsys, root.as_uri())
    assert (line["level"], line["missing"]) == ("partial-extras", [2])
    said = {}
    for command in ("inspect", "verify"):
        assert main.main([command, root.as_uri()]) == 0
        assert "without the extras of rank 2" in capsys.readouterr().out
        assert main.main([command, root.as_uri(), "--json"]) == 0
        said[command] = json.loads(capsys.readouterr().out)
    inspected, verified = said["inspect"], said["verify"]["checkpoints"][0]
    assert (inspected["level"], inspected["missing"], inspected["format"]) == ("partial-extras", [2], 1)
    assert (verified["level"], verified["lacks"]) == ("partial-extras", "the extras of rank 2")


def test_the_worth_of_extras_comes_from_the_environment(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As to the start whose mark it is."""
    Save(step=10).write(FileStore(root))
    Save(step=12, save=1, level="partial-extras").write(FileStore(root))
    for worth, taken in (("", 10), ("1", 12), ("2", 10), ("0", 12)):
        monkeypatch.setenv("SPOTGUARD_EXTRAS_WORTH", worth)
        assert [each["step"] for each in listed(capsys, root.as_uri()) if each["next"]] == [taken]
    monkeypatch.setenv("SPOTGUARD_EXTRAS_WORTH", "many")
    assert main.main(["ls", root.as_uri()]) == 2
    assert "SPOTGUARD_EXTRAS_WORTH='many' is not a number of steps from 0 to" in capsys.readouterr().err


def test_a_long_reason_folds_and_cuts_no_name(root: Path) -> None:
    save = Save(run_id="train-737e0bd1", step=400_000)
    manifest = save.write(FileStore(root))[0]
    (root / save.prefix / MARKER).unlink()
    (root / save.prefix / manifest_name(manifest.rank, save.world)).unlink()
    _, line, *more = table(FileStore(root), save.run_id, 80)
    assert line.split()[:3] == [save.run_id, str(save.step), str(save.name)]
    assert "partial: " in line
    assert more


def test_a_short_moment_is_day_and_minute_or_day_and_year() -> None:
    """As `ls -l` has it: what is long ago needs its year more than its hour."""
    now = wall("2026-01-20T12:00")
    assert short_moment(wall("2025-12-02T03:04:05"), now) == "12-02 03:04"
    assert short_moment(wall("2026-01-20T12:30"), now) == "01-20 12:30"
    assert short_moment(wall("2025-01-21"), now) == "2025-01-21"
    assert short_moment(None, now) == "-"


def wall(local: str) -> float:
    return datetime.fromisoformat(local).timestamp()


def test_inspect_has_room_for_a_moments_name_on_a_usual_terminal() -> None:
    """Of the README's script: a name that goes on in the next line is no name to copy."""
    name = "optimizer/state/model/0.weight/exp_avg_sq"
    tensor = {
        "name": name,
        "dtype": "float32",
        "stored": "float32",
        "shape": [128, 64],
        "bytes": 32768,
        "chunks": 1,
    }
    out = io.StringIO()
    Console(file=out, width=78).print(tensors_of([tensor]))
    _, line = out.getvalue().splitlines()
    assert line.split() == [name, "float32", "128x64", "32.0", "KiB", "1"]
