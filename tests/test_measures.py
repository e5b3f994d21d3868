"""The measures of the house, on small planted sources; and one prescribed run."""

from __future__ import annotations

import queue
import runpy
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "measures"
MEASURES: Any = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
places, sources = MEASURES.places, MEASURES.sources
from measuring.trace import Call, Recorder, Signal, passed  # type: ignore[import-not-found] # noqa: E402 beside the script


def planted(**files: str) -> dict[str, str]:
    """Sources by path: `hooks__a` is hooks/a.py."""
    return {f"{name.replace('__', '/')}.py": textwrap.dedent(text) for name, text in files.items()}


def kinds(found: list[Any]) -> Counter[str]:
    return Counter(place.kind for place in found)


# --- branches ---


@pytest.mark.parametrize(
    "text",
    [
        "if self._coordinator is None: pass",
        "while world > 1: pass",
        "a = 1 if channel else 2",
        "assert rank >= 0 and self._world == 4",
        "b = [x for x in y if len(ranks) > 1]",
        "if isinstance(other, JobCoordinator): pass",
        "if (world := torch.distributed.get_world_size()) != 1: pass",
        "match job:\n    case Coordinator(): pass",
        "match job:\n    case 1 if not channel: pass",
        "match (world):\n    case 1: pass",
        "if 0:\n    pass\nelif channel is not None:\n    pass",
    ],
)
def test_condition_on_several_ranks_is_one_branch(text: str) -> None:
    assert kinds(places.branches({"hooks/a.py": text})) == {"branch": 1}


@pytest.mark.parametrize(
    "text",
    ["alone = channel is None", "def f():\n    return isinstance(x, Channel)", "f(lambda: world == 1 or a)"],
)
def test_comparison_outside_of_a_condition_is_another_test(text: str) -> None:
    assert kinds(places.branches({"hooks/a.py": text})) == {"other test": 1}


@pytest.mark.parametrize(
    "text",
    ["if channel.rank == 0: pass", "if rank % world == 2: pass", "for a in range(world): pass", "f(channel)"],
)
def test_use_of_a_channel_or_of_the_world_is_no_test_of_it(text: str) -> None:
    assert places.branches({"hooks/a.py": text}) == []


def test_branches_outside_of_the_hooks_do_not_count() -> None:
    assert (
        places.branches({"agent/a.py": "if world == 1: pass", "tests/hooks/a.py": "if world == 1: pass"})
        == []
    )


# --- threads ---


def test_each_place_that_makes_a_thread_is_a_start() -> None:
    found = places.threads(
        planted(
            hooks__a="""
                threading.Thread(target=f).start()
                Timer(1, f)
                with ThreadPoolExecutor(2): pass
                _thread.start_new_thread(f, ())
                kept: threading.Thread
            """,
            agent__watch="class Watch(threading.Thread): ...\nclass Deeper(Watch): ...\nclass _Own(Deeper): ...\n_Own()",
            agent__user="Watch()\nDeeper()\n_Own()",
            tests__b="threading.Thread()",
        )
    )
    assert Counter(place.path for place in found) == {
        "hooks/a.py": 4,
        "agent/watch.py": 1,
        "agent/user.py": 2,
    }


# --- the environment ---


def test_reads_of_the_environment_count_and_writes_do_not() -> None:
    found = places.environment(
        planted(
            hooks__a="""
                os.environ.get("A")
                os.environ["B"]
                os.getenv("C")
                pass_on(os.environ)
                "D" in environ
                os.environ["E"] = "1"
                del os.environ["F"]
                os.environ.update(G="1")
            """
        )
    )
    assert [place.line for place in found] == [2, 3, 4, 5, 6]


def test_call_of_a_function_that_reads_the_variable_it_is_given_counts() -> None:
    found = places.environment(
        planted(
            hooks__settings='def setting(name):\n    return os.environ.get(name, "")',
            hooks__a='setting("SPOTGUARD_A")\nsetting(NAME)\nsetting(name)\nother("SPOTGUARD_B")',
        )
    )
    assert [(place.path, place.kind) for place in found] == [
        ("hooks/a.py", "call of a reader"),
        ("hooks/a.py", "call of a reader"),
        ("hooks/settings.py", "read"),
    ]


# --- lines ---

MODULE = '''"""The first line.

The last one.
"""

# a comment
def f() -> str:
    """Return a text."""
    return """
# no comment

"""  # code
'''


def test_each_line_has_one_kind() -> None:
    assert sources.lines(MODULE) == {"docstring": 5, "blank": 1, "comment": 1, "code": 5}
    assert sources.lines("#!/bin/sh\n\ntrue\n", python=False) == {"comment": 1, "blank": 1, "code": 1}


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("hooks/commit/upload/retry.py", "hooks/commit"),
        ("hooks/register.py", "hooks"),
        ("packaging/spotguard/cli/main.py", "packaging/spotguard/cli"),
        ("tests/hooks/save/test_a.py", "tests/hooks/save"),
        ("tests/hooks/test_a.py", "tests/hooks"),
        ("tests/agent/core/test_a.py", "tests/agent"),
        ("benchmarks/rows.py", "benchmarks"),
        ("scripts/measuring/trace.py", "scripts"),
    ],
)
def test_file_is_in_the_room_of_the_layout(path: str, room: str) -> None:
    assert sources.room(path) == room


def test_lines_are_compared_with_those_of_a_revision(tmp_path: Path) -> None:
    """Links and ignored files do not count, and the working tree stays as it is."""

    def git(*words: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    for folder in ("hooks/save", "packaging/spotguard", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "packaging/spotguard/hooks").symlink_to(tmp_path / "hooks")
    (tmp_path / "hooks/save/plan.py").write_text("one = 1\ntwo = 2\n")
    (tmp_path / "scripts/run").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "Plant")
    (tmp_path / "hooks/save/plan.py").write_text("one = 1\n")
    (tmp_path / "hooks/new.py").write_text("three = 3\n")
    (tmp_path / "scripts/run.log").write_text("nothing\n")
    before, after = sources.revision(tmp_path, "HEAD"), sources.working_tree(tmp_path)
    rows = [line.split(" | ")[:4] for line in MEASURES.of_lines([before, after])]
    assert rows[2:5] == [
        ["| hooks", "0", "1", "+1"],
        ["| hooks/save", "2", "1", "-1"],
        ["| scripts", "2", "2", "+0"],
    ]
    assert (tmp_path / "hooks/save/plan.py").read_text() == "one = 1\n"


# --- what a run passes ---

A, B, C = ("spotguard.a", "A.run"), ("spotguard.b", "B.go"), ("spotguard.b", "help")


def test_modules_classes_and_returns_count_inside_the_window_alone() -> None:
    calls = [
        Call(0.5, "main", None, ("spotguard.before", "X.f")),
        Call(1.0, "main", None, A),
        *[Call(1.1, "main", A, B)] * 3,  # a loop
        Call(1.2, "main", A, C),
        Call(1.3, "main", B, C),  # inside one module
        Call(1.4, "writer-1", A, B),
        Call(1.5, "writer-2", A, B),
        Call(2.5, "main", B, ("spotguard.after", "f")),
    ]
    result = passed(calls, [], 1.0, 2.0)
    assert result.modules == {"spotguard.a", "spotguard.b"}
    assert result.classes == {"spotguard.a.A", "spotguard.b.B"}
    assert len(result.ways) == 3
    assert result.returns == 1
    assert (result | passed(calls, [], 0.0, 1.0)).modules == {
        "spotguard.a",
        "spotguard.b",
        "spotguard.before",
    }


def test_hand_over_needs_two_threads_and_one_object() -> None:
    signals = [
        Signal(1.0, "main", A, 7, given=True),
        Signal(1.1, "saver", B, 7, given=False),
        Signal(1.2, "main", A, 8, given=True),
        Signal(1.3, "main", C, 8, given=False),
        Signal(1.4, "saver", C, 9, given=False),
    ]
    assert passed([], signals, 1.0, 2.0).hand_overs == {("main", A, "saver", B)}


class _Worker:
    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.done = threading.Event()

    def run(self) -> None:
        self.tasks.get()
        self.done.set()


def _give(worker: _Worker) -> None:
    thread = threading.Thread(target=worker.run, name="worker-1")
    thread.start()
    worker.tasks.put(1)
    assert worker.done.wait(60)
    thread.join()


def test_recorder_sees_calls_and_hand_overs_of_threads() -> None:
    recorder = Recorder(lambda file: "here" if file == __file__ else "")
    recorder.begin()
    try:
        _give(_Worker())
    finally:
        recorder.end()
    result = passed(recorder.calls, recorder.signals, 0.0, float("inf"))
    give, run, main = ("here", "_give"), ("here", "_Worker.run"), threading.current_thread().name
    assert result.classes == {"here._Worker"}
    assert {call.callee for call in recorder.calls if call.thread == "worker-1"} == {run}
    assert result.hand_overs == {
        (main, give, "worker", ("", "worker-1")),
        (main, give, "worker", run),
        ("worker", run, main, give),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_save_of_one_process_passes_the_gate_and_the_marker() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, SCRIPT, "save", "--runs", "1", "--list"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for run, module in (
        ("save of one process", "control.gate"),
        ("save of one process", "checkpoint.marker"),
        ("save of 4 ranks", "control.ranks.coordinator"),
        ("restore", "restore.reads.fetch"),
    ):
        assert f"{run}: modules: spotguard.hooks.{module}" in lines
