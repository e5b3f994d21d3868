"""The floors hold, the linter would notice if they did not, and what must stay small loads nothing large."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("importlinter")

ROOT = Path(__file__).parents[1]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts on the tree in `folder`, whatever spotguard is installed."""
    program = (
        "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache', '--no-logo'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder / "packaging")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after `statement`, beyond those it starts with."""
    program = f"import sys; before = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_contracts_are_kept() -> None:
    """As `make check` asks."""
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


#: Where a line is planted, what it says, which contract it breaks, and how the linter names the import.
PLANTED = [
    (
        "providers/errors.py",
        "from .. import agent",
        "arrows only go down",
        "providers.errors -> spotguard.agent",
    ),
    (
        "hooks/ipc/protocol.py",
        "from ... import cli",
        "arrows only go down",
        "hooks.ipc.protocol -> spotguard.cli",
    ),
    ("packaging/spotguard/stray.py", "", "arrows only go down", "- spotguard.stray"),
    ("agent/stray.py", "from .. import __version__", "no room looks up", "agent.stray -> spotguard"),
    ("agent/stray.py", "from ..hooks import stray", "of the hooks", "agent.stray -> spotguard.hooks.stray"),
    (
        "hooks/state/parts/values.py",
        "from ...save import committer",
        "inside the hooks",
        "values -> spotguard.hooks.save.committer",
    ),
    (
        "hooks/checkpoint/format/keys.py",
        "from ...state.parts import rng",
        "inside the hooks",
        "keys -> spotguard.hooks.state.parts.rng",
    ),
    (
        "hooks/commit/upload/workers.py",
        "from ...control import saver",
        "inside the hooks",
        "workers -> spotguard.hooks.control.saver",
    ),
    (
        "hooks/ipc/protocol.py",
        "from .. import stray",
        "the protocol and its messages",
        "protocol -> spotguard.hooks.stray",
    ),
    ("agent/stray.py", "import torch", "the agent stays small", "agent.stray -> torch"),
    (
        "agent/stray.py",
        "from ..providers import stores",
        "the agent stays small",
        "agent.stray -> spotguard.providers.stores",
    ),
    (
        "providers/errors.py",
        "def later():\n    import boto3.session",
        "the agent stays small",
        "errors -> boto3",
    ),
    (
        "hooks/stray.py",
        "from ..providers import simulator",
        "the training process",
        "stray -> spotguard.providers.simulator",
    ),
    (
        "hooks/stray.py",
        "from ..providers.clouds.detect import *",
        "the training process",
        "stray -> spotguard.providers.clouds.detect",
    ),
    (
        "agent/ipc/paths.py",
        "from ..core import budget",
        "inside the agent",
        "paths -> spotguard.agent.core.budget",
    ),
    (
        "hooks/commit/cleanup.py",
        "from ..state.device import streams",
        "queue, commit, retention",
        "cleanup -> spotguard.hooks.state.device.streams",
    ),
    ("providers/health.py", "from . import notice", "no package imports", ".notice -> .health"),
]


def test_each_planted_violation_is_caught(tmp_path: Path) -> None:
    """A contract that names a module wrongly is kept for ever: each must be seen to break, at each import."""
    for folder in ("agent", "hooks", "providers", "packaging"):
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for room in ("agent", "hooks"):
        (tmp_path / room / "stray.py").touch()
    # The agent must reach the lowest floor for a violation there to be its own.
    (tmp_path / "agent/stray.py").write_text("from ..providers import errors\n")
    for where, line, _, _ in PLANTED:
        with (tmp_path / where).open("a") as module:
            module.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    said = re.split(r"^(.+)\n-+\n", done.stdout.partition("\nBroken contracts\n")[2], flags=re.MULTILINE)
    broken = dict(zip(said[1::2], said[2::2], strict=True))
    for _, line, contract, found in PLANTED:
        (full,) = [name for name in broken if name.startswith(contract)]
        named = [each for each in broken[full].splitlines() if re.search(rf"{re.escape(found)}( |$)", each)]
        assert named, f"{line!r} does not break {contract!r}:\n{broken[full]}"


def test_every_provider_module_has_a_side() -> None:
    """The contracts name modules one by one: a new one that is in none of them would be open to both rooms."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    closed = {contract["id"]: contract.get("forbidden_modules", []) for contract in contracts}
    shared = {
        f"spotguard.providers.{name}"
        for name in (
            "clock",
            "dates",
            "errors",
            "health",
            "notice",
            "optional_deps",
            "redaction",
            "run_id",
            "text",
        )
    }
    there = {
        f"spotguard.providers.{path.stem}"
        for path in (ROOT / "providers").iterdir()
        if path.stem.isidentifier() and not path.stem.startswith("__")
    }
    advice = "in pyproject.toml, name a store under agent-light, and what asks a metadata service under hooks-blind"
    assert there - shared - {*closed["agent-light"], *closed["hooks-blind"]} == set(), advice


def test_the_face_loads_the_standard_library_only() -> None:
    """`import spotguard` stands in every training script and before the agent's first line."""
    loaded = {name.partition(".")[0] for name in loaded_by("import spotguard")}
    assert loaded <= sys.stdlib_module_names | {"spotguard"}


def test_modules_that_need_no_torch_load_none() -> None:
    """The imports that the contract ignores are types, or wait for somebody who has torch."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (modules,) = [contract["source_modules"] for contract in contracts if contract["id"] == "no-torch"]
    files = [
        path
        for module in modules
        for place in [ROOT / module.removeprefix("spotguard.").replace(".", "/")]
        for path in (place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")])
    ]
    names = [".".join(("spotguard", *path.relative_to(ROOT).with_suffix("").parts)) for path in files]
    loaded = loaded_by("import " + ", ".join(name.removesuffix(".__init__") for name in names))
    assert len(names) > 50
    assert "torch" not in loaded


def test_the_agent_loads_nothing_large() -> None:
    """What lint-imports cannot see: a package's `__init__`, and what the libraries bring along."""
    files = (ROOT / "agent").rglob("[!_]*.py")
    modules = [".".join(("spotguard", *path.relative_to(ROOT).with_suffix("").parts)) for path in files]
    loaded = loaded_by("import spotguard.agent" + "".join(f", {module}" for module in modules))
    large = {"azure", "boto3", "botocore", "google", "numpy", "safetensors", "torch"}
    assert {name for name in loaded if name.partition(".")[0] in large} == set()
    hooks = {name for name in loaded if name.startswith("spotguard.hooks")}
    known = ("agent_messages", "failure_classes", "peer_credentials", "messages", "protocol", "typed_json")
    assert hooks <= {
        "spotguard.hooks",
        "spotguard.hooks.ipc",
        *(f"spotguard.hooks.ipc.{name}" for name in known),
    }
