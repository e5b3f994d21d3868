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
    (tmp_path / "torch" / "_dynamo").mkdir(parents=True)
    made = "import gc\nassert not gc.isenabled()\nmade = [[] for _ in range(5000)]\n"
    (tmp_path / "torch" / "__init__.py").write_text(made)
    parts = {
        "__init__": f"{made}disable, optimize = 'compiler', 'torch._dynamo.optimize'\nfrom . import trace_rules, utils\n",
        "config": "",
        "guards": "name = 'torch._dynamo.guards'\n",
        "trace_rules": "def clear_lru_cache():\n    return 'cleared'\n",
        "utils": "counters = 'torch._dynamo.utils.counters'\n",
    }
    for name, text in parts.items():
        (tmp_path / "torch" / "_dynamo" / f"{name}.py").write_text(text)
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
import torch._dynamo.guards
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


@pytest.mark.parametrize(
    "wanted", ["torch._dynamo.optimize", "torch._dynamo.utils.counters", "torch._dynamo.guards"]
)
def test_compiler_is_imported_when_it_is_wanted(folder: Path, wanted: str) -> None:
    """Not for an optimizer, which disables it, not for a process group, which empties its caches, and not for its settings."""
    code = f"""
import importlib, sys, torch, torch._dynamo
assert torch._dynamo.disable(5) == 5
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
assert torch._dynamo.trace_rules.clear_lru_cache() is None
import torch._dynamo.config
assert torch._dynamo.disable(5) == 5
try:
    print({wanted})
except AttributeError:
    print(importlib.import_module("{wanted}").name)
print(torch._dynamo.disable, torch._dynamo.trace_rules.clear_lru_cache())
"""
    assert run(folder, code) == f"{wanted}\ncompiler cleared\n"
