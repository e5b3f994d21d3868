"""tests/scenarios.md names the tests of each scenario: they are there, they say so themselves, and none is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.cases import cases
from tests.docs.pages import ROOT

PAGE = ROOT / "tests" / "scenarios.md"
_ALL = set(range(1, 19))

_SECTION = re.compile(r"^## S(\d+) .*\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
_TEST = re.compile(r"^- `(tests/[\w/]+\.py)(?:::(test_\w+))?`$", re.MULTILINE)
#: What a test's name or its docstring begins with: `test_s8a_`, "S7 and S8d: …". (Elsewhere S3 is the store of that name.)
_IN_NAME = re.compile(r"(?<=^test_)s(\d{1,2})[a-d]?(?=_)")
_HEAD = re.compile(r"S\d[^.:]*:")
_IN_WORDS = re.compile(r"\bS(\d{1,2})[a-d]?\b")
#: A file without any of these has no test of a scenario.
_MAY_SAY = re.compile(r'"""\s*S\d|\btest_s\d')


@dataclass(frozen=True, slots=True)
class Test:
    __test__ = False  # of the suite's, and none itself

    file: str
    name: str
    #: Those that it says it is of.
    scenarios: frozenset[int]


@cache
def suite() -> tuple[Test, ...]:
    """Every test of the files that the page names, or that may say a scenario themselves."""
    files = {file for lines in named().values() for file, _ in lines}
    return tuple(
        test
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if _MAY_SAY.search(text := path.read_text()) or path.relative_to(ROOT).as_posix() in files
        for test in _of(path, text)
    )


def _of(path: Path, text: str) -> Iterator[Test]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            words = (ast.get_docstring(node) or "").partition("\n\n")[0]
            head = _HEAD.match(words)
            said = _IN_NAME.findall(node.name) + _IN_WORDS.findall(head[0] if head else "")
            scenarios = frozenset(map(int, said)) & _ALL
            yield Test(path.relative_to(ROOT).as_posix(), node.name, scenarios)


@cache
def named() -> dict[int, list[tuple[str, str]]]:
    """By scenario, the files and tests that the page names."""
    return {int(number): _TEST.findall(body) for number, body in _SECTION.findall(PAGE.read_text())}


def test_the_page_has_every_scenario() -> None:
    """And tests for each."""
    assert set(named()) == _ALL
    assert all(named().values())


@cases("number", sorted(_ALL))
def test_each_test_named_on_the_page_exists(number: int) -> None:
    """Each test, by its file and its name."""
    there = {(test.file, test.name) for test in suite()}
    files = {test.file for test in suite()}
    for file, name in named()[number]:
        assert (file, name) in there or (not name and file in files), f"S{number}: {file}::{name}"


@cases("number", sorted(_ALL))
def test_the_page_names_every_file_that_has_a_test_of_it(number: int) -> None:
    """By the numbers in the tests' own names and docstrings."""
    files = {test.file for test in suite() if number in test.scenarios}
    assert files - {file for file, _ in named()[number]} == set()


def test_every_test_that_is_named_says_its_scenario_or_stands_for_itself() -> None:
    """Some were there before the scenarios had numbers: they are few, and named here."""
    older = {
        "test_background_saves_are_killed_at_random_instants",
        "test_a_further_machine_supersedes",
        "test_a_notice_of_this_machine_takes_over",
        "test_two_machines_that_were_told_with_equal_ids_are_two",
    }
    said = {(test.file, test.name): test.scenarios for test in suite()}
    for number, lines in named().items():
        for file, name in lines:
            assert not name or number in said[file, name] or name in older, f"S{number}: {file}::{name}"
