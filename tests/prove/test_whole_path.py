"""Programs that resume exactly, and programs that do not, each with its cause: real lives, from the command line to the verdict."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.prove.conftest import HERE, Prove
from tests.tiers import with_nights

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.timeout(1600)]

#: Enough for a notice in the middle, a kill, and what comes after.
SHORT = ("--steps", "8", "--tries", "1")

#: Those that the issue lists, and what may be found: the verdict's exit code, and the cause.
LISTED = {
    "prefetch": (1, "prefetch"),
    "optimizer": (1, "optimizer"),
    "module": (1, "module"),
    "ema": (1, "module"),
    "ema_by_hand": (1, "kept"),
    "scheduler": (1, "object"),
    "iterator": (1, "iterator-before-restore"),
    "step_first": (1, "step-before-optimizer"),
    "step_between": (1, "step-before-optimizer"),
    "step_early": (1, "after-boundary"),
    "counter": (1, "variable"),
    "anneal": (1, "changed-after-restore"),
    "pid": (3, "unseeded"),
    "thread": (3, "thread"),
}

#: Their lives are recorded, and `test_causes.py` judges the records in the fast tier. Each takes 25 s of a processor here.
NIGHTS = frozenset(LISTED) - {"prefetch"}

EXACT = [
    *("epochs", "schedule", "adversaries", "closure", "logging", "generators", "carried", "teacher", "plain"),
    *("unseeded", "workers", "containers", "persistent_workers", "anneal"),
]


def check(prove: Prove, name: str, **how: Any) -> None:
    code, cause = LISTED[name]
    found = prove(f"plant_{name}", *SHORT, **how)
    assert (found.code, found.causes[:1]) == (code, [cause]), found


@pytest.mark.slow
def test_a_plain_loop_is_exact(prove: Prove, job: Path) -> None:
    found = prove("exact_plain", *SHORT)
    assert (found.code, found.body["verdict"], found.causes) == (0, "EXACT", [])
    assert [(each["series"], each["ended_by"], each["exact"]) for each in found.body["resumed"]] == [
        ("preempted", "notice", True),
        ("killed", "kill", True),
    ]
    assert found.body["kept"] == str(job / ".spotguard" / "proof.json")
    assert found.body["not_tried"] == ["evaluation", "save"]
    assert (found.body["inputs"], found.body["losses"], found.body["files_watched"]) == (8, 8, True)


def test_a_seed_by_the_process_number(prove: Prove) -> None:
    check(prove, "pid")


@pytest.mark.slow
@pytest.mark.parametrize("name", with_nights((name for name in LISTED if name != "pid"), NIGHTS))
def test_a_plant_is_found_with_its_cause(prove: Prove, name: str) -> None:
    check(prove, name)


@pytest.mark.soak
def test_the_remedy_as_it_is_typed_makes_a_script_exact(prove: Prove) -> None:
    text = (HERE / "programs" / "plant_workers_stay.py").read_text()
    found = prove(text, *SHORT, "--fail-fast")
    assert (found.code, found.causes[:1]) == (1, ["workers-stay"]), found
    assert "persistent_workers=False" in found.body["causes"][0]["what_to_do"]
    found = prove(text.replace("persistent_workers=True", "persistent_workers=False"), *SHORT)
    assert (found.code, found.causes) == (0, []), found


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in EXACT if name not in ("plain", "epochs")])
def test_an_exact_script_raises_no_alarm(prove: Prove, name: str) -> None:
    found = prove(f"exact_{name}", *SHORT)
    assert (found.code, found.causes, found.body["differences"]) == (0, [], []), found


@pytest.mark.slow
def test_events_have_a_notice_before_in_and_after_them(prove: Prove) -> None:
    found = prove("exact_epochs", "--steps", "20", "--tries", "4")
    assert (found.code, found.body["not_tried"]) == (0, []), found
    ended = [(each["series"], each["ended_at"], each["place"]) for each in found.body["resumed"]]
    for event, turn in (("epoch end", 17), ("evaluation", 6), ("save", 12)):
        assert [each[1:] for each in ended if each[0] == event] == [
            (turn - 1, "boundary"),
            (turn - 1, event),
            (turn, "boundary"),
        ]
    assert [each[2] for each in ended if each[0] == "preempted"] == [
        "boundary",
        "forward",
        "optimizer",
        "after optimizer",
    ]


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
GROUP = (*TORCHRUN, str(Path(__file__).with_name("in_a_group.py")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "cause"),
    [("exact_ranks", 0, []), pytest.param("plant_ranks", 1, ["optimizer"], marks=pytest.mark.soak)],
)
def test_two_ranks_below_torchrun(prove: Prove, name: str, code: int, cause: list[str]) -> None:
    found = prove(name, *SHORT, "--jobs", "1", command=TORCHRUN)
    assert (found.code, found.causes[:1]) == (code, cause), found
    assert found.body["ranks"] == 2


@pytest.mark.soak
@pytest.mark.parametrize("name", LISTED)
def test_a_plant_is_found_with_its_cause_in_two_ranks(prove: Prove, name: str) -> None:
    check(prove, name, command=GROUP)


@pytest.mark.soak
@pytest.mark.parametrize("name", EXACT)
def test_an_exact_script_raises_no_alarm_in_two_ranks(prove: Prove, name: str) -> None:
    found = prove(f"exact_{name}", *SHORT, command=GROUP)
    assert (found.code, found.causes, found.body["ranks"]) == (0, [], 2), found


#: Names a store, a run, a stage and a function of its own; all but `SHARED` must be as if it had not.
NAMES = """
import atexit, os, pathlib, torch, spotguard
os.environ["SPOTGUARD_STAGE"] = "{outside}/stage"
os.environ["SPOTGUARD_STORE"] = "file://{outside}/variable"
spotguard.on_notice(lambda notice: pathlib.Path("{outside}/noticed").touch())
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = spotguard.register("file://{outside}/store", run_id="real", model=model, optimizer=optimizer)
done = guard.restore() or guard.restore(run_id="base", step=5)
try:
    for _ in range(done, 100):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        guard.step()
finally:
    pathlib.Path("cleaned up").touch()
"""


@pytest.mark.soak  # one life of it is in the fast tier: tests/hooks/recorder/test_guard.py
def test_the_store_that_the_script_names_sees_no_request(prove: Prove, tmp_path: Path) -> None:
    found = prove(NAMES.format(outside=tmp_path / "outside"), *SHORT)
    assert found.code == 0, found
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "job" / "cleaned up").exists(), "each life is in a copy"


#: Fills a cache outside the working folder where there is none.
SHARES = """
import pathlib, torch, spotguard
cache = pathlib.Path("{outside}")
if not cache.exists():
    cache.write_text("12")
torch.manual_seed(int(cache.read_text()))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(100):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_file_that_runs_share_makes_the_verdict_unsure(prove: Prove, tmp_path: Path) -> None:
    found = prove(SHARES.format(outside=tmp_path / "cache"), *SHORT)
    assert (found.code, found.body["shared_files"]) == (3, [str(tmp_path / "cache")])
    assert [each["exact"] for each in found.body["resumed"]] == [True, True]


@pytest.mark.soak
def test_a_shared_file_that_is_there_before_raises_no_doubt(prove: Prove, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("12")
    assert prove(SHARES.format(outside=tmp_path / "cache"), *SHORT).code == 0


@pytest.mark.slow
def test_a_resume_that_fails_is_a_finding(prove: Prove) -> None:
    program = "import pathlib\nif pathlib.Path('trained').exists(): raise RuntimeError('twice')\n"
    program += "pathlib.Path('trained').touch()\n" + SHARES.format(outside="seed")
    found = prove(program, *SHORT)
    assert (found.code, found.causes) == (1, ["failed"])
    assert "RuntimeError: twice" in found.body["causes"][0]["cause"]


#: Never comes to a boundary, and never ends by itself.
NEVER = """
import torch, spotguard
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = spotguard.register(model=model, optimizer=optimizer)
guard.restore()
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_script_without_a_boundary_proves_nothing(prove: Prove) -> None:
    found = prove(NEVER, *SHORT)
    assert (found.code, found.body) == (4, {})
    assert re.search(r"the command trained 80 optimizer steps and never called guard.step\(\)", found.error)
