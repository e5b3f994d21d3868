"""The statement that a frame executes, as its source has it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType

from spotguard.hooks.state.inventory.call_stack import statements_at

SOURCE = """
for n in range(1):
    x = n; look(); y = n
"""


def test_statement_among_several_of_one_line_is_the_one_that_runs(tmp_path: Path) -> None:
    script, found = tmp_path / "script.py", list[str]()
    script.write_text(SOURCE)

    def look() -> None:
        frame: FrameType | None = sys._getframe().f_back
        assert frame is not None
        found.append(ast.unparse(statements_at(frame)[0]))

    exec(compile(SOURCE, str(script), "exec"), {"look": look})
    assert found == ["look()"]
