"""What `make check` refuses of the layout: full folders, class names used twice, retired words. Each is planted."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HOUSE: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "check-house")))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Two rooms that are in order."""
    for folder in ("agent", "agent/ipc", "providers"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "agent/ipc/machine.py").write_text("class Machine: ...\n")
    return tmp_path


def test_this_house_is_in_order() -> None:
    assert HOUSE.main(ROOT) == []


def test_a_thirteenth_module_is_refused_and_a_folder_counts_one(planted: Path) -> None:
    for number in range(11):
        (planted / f"agent/part{number}.py").touch()
    assert HOUSE.main(planted) == []
    (planted / "agent/another.py").touch()
    (said,) = HOUSE.main(planted)
    assert said.startswith("agent: 13 modules, and 12 are the most")


def test_a_class_name_that_is_used_twice_is_refused_with_its_places(planted: Path) -> None:
    """With an underscore before it, too."""
    (planted / "providers/detect.py").write_text("class _Machine: ...\n")
    (said,) = HOUSE.main(planted)
    assert said == "class Machine: in agent/ipc/machine.py and in providers/detect.py: one name, one meaning"


def test_a_retired_word_is_refused_with_the_word_to_say(planted: Path) -> None:
    (planted / "agent/herald.py").touch()
    (said,) = HOUSE.main(planted)
    assert said == "agent/herald.py: 'herald' is retired: say notice_hook"


def test_a_docstring_that_names_a_parameter_of_before_is_refused(planted: Path) -> None:
    """A function's, and a class's; further lines of a description are no names."""
    (planted / "agent/ipc/client.py").write_text(
        'class Client:\n    """A client.\n\n    Args:\n        socket: its path\n            note: long.\n    """\n\n'
        "    def __init__(self, path: str) -> None: ...\n"
    )
    (said,) = HOUSE.main(planted)
    assert said == "agent/ipc/client.py: Client documents 'socket', and has no such parameter"


def test_a_fifth_file_of_the_hooks_that_starts_threads_is_refused(planted: Path) -> None:
    (planted / "hooks").mkdir()
    (planted / "hooks/__init__.py").touch()
    for number in range(4):
        (planted / f"hooks/part{number}.py").write_text("threading.Thread(target=run)\nTimer(1.0, run)\n")
    assert HOUSE.main(planted) == []
    (planted / "hooks/another.py").write_text("pool = ThreadPoolExecutor(2)\n")
    (said,) = HOUSE.main(planted)
    assert said.startswith("hooks: 5 files start threads (hooks/another.py, hooks/part0.py,")


def test_a_test_name_that_begins_with_a_clause_is_refused(planted: Path) -> None:
    (planted / "tests").mkdir()
    (planted / "tests/test_it.py").write_text(
        "def test_a_rank_waits(): ...\ndef test" + "_who_waits(): ...\n"
    )
    (said,) = HOUSE.main(planted)
    assert said.startswith("tests/test_it.py: test_who_waits: begin with the thing that acts")
