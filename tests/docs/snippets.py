"""Runs the Python blocks of the pages, one after another in one process: torch is loaded once.

Reads `[[name, code], ...]` on stdin. A function named `test_...` in a block is called, as pytest would.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any


def run(name: str, code: str) -> None:
    """One block, as a script of its own: its own names, its own store, and no guard left behind."""
    space: dict[str, Any] = ModuleType("__main__").__dict__
    with tempfile.TemporaryDirectory() as store:
        os.environ["SPOTGUARD_STORE"] = Path(store).as_uri()
        try:
            exec(compile(code, name, "exec"), space)
            for test in [value for key, value in space.items() if key.startswith("test_")]:
                with tempfile.TemporaryDirectory() as tmp_path:
                    test(*[Path(tmp_path)] * test.__code__.co_argcount)
        finally:
            # What registered, or what holds the guard as its attribute.
            for guard in [getattr(value, "guard", value) for value in space.values()]:
                if type(guard).__name__ == "Guard":
                    guard.close()


if __name__ == "__main__":
    for each in json.load(sys.stdin):
        print(f"{each[0]} ...", flush=True)
        run(*each)
