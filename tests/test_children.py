"""Python processes that tests start import torch cheaply, and see nothing else of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a torch that makes objects, and with its compiler."""
    (tmp_path / "torch").mkdir()
    made = "import gc\nassert not gc.isenabled()\nmade = [[] for _ in range(5000)]\n"
    (tmp_path / "torch" / "__init__.py").write_text(made)
    (tmp_path / "torch" / "_dynamo.py").write_text(made + "disable = 'compiler'\n")
    return tmp_path


def run(folder: Path, code: str, **env: str) -> str:
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(folder)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_objects_of_torch_are_frozen_and_those_of_the_script_are_collected(folder: Path) -> None:
    """Also those that are left at the process's end."""
    code = """
import gc, torch
assert gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 5000
class Own:
    def __del__(self):
        print("collected")
own = Own()
own.itself = own
del own
import torch._dynamo
assert gc.isenabled()
assert gc.get_freeze_count() > frozen + 5000
"""
    assert (
        run(folder, code.replace("import torch._dynamo", "gc.collect()\nimport torch._dynamo"))
        == "collected\n"
    )
    assert run(folder, code.partition("import torch._dynamo")[0]) == "collected\n"


def test_script_that_collects_no_garbage_stays_so(folder: Path) -> None:
    (folder / "torch" / "__init__.py").write_text("")
    assert (
        run(folder, "import gc\ngc.disable()\nimport torch\nprint(gc.isenabled(), gc.get_freeze_count())")
        == "False 0\n"
    )


def test_import_that_fails_leaves_the_collector_on(folder: Path) -> None:
    (folder / "torch" / "__init__.py").write_text("raise ImportError")
    code = "import gc\ntry:\n    import torch\nexcept ImportError:\n    print(gc.isenabled())"
    assert run(folder, code) == "True\n"


def test_torch_has_no_compiler_only_if_it_is_asked_for(folder: Path) -> None:
    code = "import torch, torch._dynamo; print(torch._dynamo.disable)"
    assert run(folder, code) == "compiler\n"
    assert run(folder, code.replace("disable", "disable(5)"), LIGHT_TORCH="1") == "5\n"
