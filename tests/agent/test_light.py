"""The agent stays small: what it must never load, and that it sends nothing where no cloud is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from tempfile import TemporaryDirectory

import pytest

HEAVY = (
    "torch",
    "numpy",
    "boto3",
    "botocore",
    "google",
    "azure",
    "rich",
    "safetensors",
    "asyncio",
    "concurrent",
    "prometheus_client",
)
OURS = ("providers.stores", "providers.simulator")

LOADED = """
import json, os, sys
from spotguard.agent.config.resolve import resolve
from spotguard.agent import app
from spotguard.agent.telemetry import logs
modules = set(sys.modules)
options = resolve("run", {"provider": sys.argv[1], "socket": sys.argv[2], "run-id": "r"}, os.environ)
logs.configure(json_log=False)
command = [sys.executable, "-c", "import os; print(open(f'/proc/{os.getppid()}/status').read())"]
code = app.run(options, command)
print(json.dumps([code, sorted(modules), sorted(sys.modules)]))
"""


@cache
def loaded(provider: str) -> tuple[set[str], set[str], str]:
    """Modules after the import, modules after a run, and what the run wrote on stderr."""
    with TemporaryDirectory(dir=os.environ["XDG_RUNTIME_DIR"]) as folder:
        done = subprocess.run(
            [sys.executable, "-c", LOADED, provider, f"{folder}/a.sock"],
            capture_output=True,
            text=True,
            check=True,
        )
    code, before, after = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    return set(before), set(after), done.stderr


def heavy(modules: set[str]) -> list[str]:
    ours = tuple(f"spotguard.{name}" for name in OURS)
    return sorted(m for m in modules if m.split(".")[0] in HEAVY or m.startswith(ours))


@pytest.mark.parametrize("provider", ["none", "auto", "aws", "gcp"])
def test_it_loads_no_tensors_no_store_no_sdk(provider: str) -> None:
    """Neither on import nor while it guards a command."""
    before, after, _ = loaded(provider)
    assert heavy(before) == []
    assert heavy(after) == []
    assert {m for m in after if m.startswith("spotguard.hooks.")} <= {
        "spotguard.hooks.ipc",
        "spotguard.hooks.ipc.peer_credentials",
        "spotguard.hooks.ipc.agent_messages",
        "spotguard.hooks.ipc.messages",
        "spotguard.hooks.ipc.protocol",
        "spotguard.hooks.ipc.typed_json",
        "spotguard.hooks.ipc.failure_classes",
    }


def test_without_a_cloud_it_loads_no_http_client() -> None:
    """And so cannot send anything."""
    for provider in ("none", "auto"):
        _, after, _ = loaded(provider)
        assert "requests" not in after
        assert "urllib3" not in after


def test_a_blind_source_is_said_on_stderr_alone() -> None:
    """The command's stdout is untouched; metadata that nobody answers (the suite's, on port 9) does not end the run."""
    _, after, stderr = loaded("aws")
    assert "requests" in after
    assert "guarding pid" in stderr
