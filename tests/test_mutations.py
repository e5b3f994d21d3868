"""Each planted defect applies to this tree and names its tests, and the command finds one that no test catches."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MUTATIONS: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "mutations")))

HEADER = "Defect: The answer is wrong.\nKind: mutation\nTests: tests/test_answer.py\n"
ANSWER = "def answer() -> int:\n    # The question is not known.\n    return 42\n\n\nASKED = True\n"
TEST = "from agent.answer import answer\nassert answer() == 42\n"


QUESTION, RETURN = "    # The question is not known.\n", "    return 42\n"


def changed(before: str, after: str) -> str:
    """A defect that changes the second line, or the third, of the program."""
    first, last = ("def answer() -> int:\n", RETURN) if "#" in before else (QUESTION, "\n")
    at = 1 if "#" in before else 2
    return (
        f"{HEADER}\n--- a/agent/answer.py\n+++ b/agent/answer.py\n"
        f"@@ -{at},3 +{at},3 @@\n {first}-{before}+{after} {last}"
    )


#: A defect that the test catches, one that no test can catch, and one of another program.
CAUGHT = changed(RETURN, "    return 43\n")
HARMLESS = changed(QUESTION, "    # Nobody asks.\n")
FOREIGN = changed("    return 41\n", "    return 43\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A program of one function, and its test."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "agent" / "answer.py").write_text(ANSWER)
    (tmp_path / "tests" / "test_answer.py").write_text(TEST)
    return tmp_path


def plant(tree: Path, text: str, name: str = "agent/answer") -> Any:
    path = tree / MUTATIONS.FOLDER / f"{name}.patch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return MUTATIONS.read(path, tree)


def run(tree: Path, tests: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run the test as a program: it ends with 1 if it fails."""
    command = [sys.executable, "-c", (tree / tests[0]).read_text()]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_defect_applies_and_names_its_tests() -> None:
    assert MUTATIONS.problems(ROOT) == []


def test_there_are_at_least_eighty_mutations_and_thirty_five_faults() -> None:
    kinds = Counter(patch.kind for patch in MUTATIONS.read_all(ROOT)[0])
    assert kinds["mutation"] >= 80
    assert kinds["fault"] >= 35


def test_defects_differ_in_their_words_and_in_their_changes() -> None:
    patches, _ = MUTATIONS.read_all(ROOT)
    assert len({patch.defect for patch in patches}) == len(patches)
    assert len({patch.diff for patch in patches}) == len(patches)


def test_a_defect_that_a_test_catches_is_killed(tree: Path) -> None:
    patch = plant(tree, CAUGHT)
    assert MUTATIONS.judge(patch, tree, run).word == "killed"
    assert (tree / "agent" / "answer.py").read_text() == ANSWER


def test_a_changed_comment_survives_and_fails_the_command(tree: Path) -> None:
    patch = plant(tree, HARMLESS)
    verdict = MUTATIONS.judge(patch, tree, run)
    assert verdict.word == "SURVIVED"
    assert MUTATIONS.summary([verdict]) == (1, f"1 defects: 1 SURVIVED, {verdict.seconds:.0f} s")


def test_a_defect_of_another_tree_does_not_apply_and_fails_the_command(tree: Path) -> None:
    patch = plant(tree, FOREIGN)
    verdict = MUTATIONS.judge(patch, tree, run)
    assert verdict.word == "does not apply"
    assert MUTATIONS.summary([verdict])[0] == 1
    assert MUTATIONS.problems(tree) == [f"agent/answer: does not apply: {verdict.detail}"]


@pytest.mark.parametrize(
    ("code", "word"), [(None, "killed"), (0, "SURVIVED"), (1, "killed"), (2, "BROKEN"), (5, "BROKEN")]
)
def test_only_a_failed_test_and_a_hang_are_catches(tree: Path, code: int | None, word: str) -> None:
    """An import that breaks (2) and a run without tests (5) say nothing of the tests."""
    patch = plant(tree, CAUGHT)
    verdict = MUTATIONS.judge(patch, tree, lambda *_: (code, "no tests ran"))
    assert verdict.word == word
    assert MUTATIONS.summary([verdict])[0] == int(word != "killed")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEADER.replace("Kind: mutation\n", ""), "the header is"),
        (HEADER.replace("The answer is wrong.", ""), "each with a value"),
        (HEADER.replace("mutation", "typo"), "kind 'typo', expected one of mutation, fault"),
        (HEADER.replace("test_answer", "test_question"), "tests/test_question.py is not there"),
        (HEADER, "the diff changes []"),
        (f"{HEADER}\n--- a/tests/test_answer.py\n+++ b/tests/test_answer.py\n", "expected files of agent/"),
    ],
)
def test_a_malformed_defect_is_refused_with_its_reason(tree: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="agent/answer: ") as refused:
        plant(tree, text)
    assert reason in str(refused.value)
    assert reason in MUTATIONS.problems(tree)[0]
