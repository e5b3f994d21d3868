"""`make test-pythons`: loud where there is no other Python; torch comes from the index that is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"

#: Makes environments of copies of itself, prints what pip is to do, and has torch once pip was asked for it.
PYTHON = """#!/bin/sh
case "$1 $2" in
    *torch*) [ -e "$(dirname "$0")/torch" ] && echo 2.13.0 ;;
    "-c "*) [ "$3" = 3.13 ] ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && printf '#!/bin/sh\necho "pytest $*"' >"$3/bin/pytest" && chmod +x "$3/bin/pytest" ;;
    "-m pip") shift 3; echo "pip $*"; case "$*" in *"-deps torch") touch "$(dirname "$0")/torch" ;; esac ;;
esac
"""
INDEX = "http://127.0.0.1:9/cpu"


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 1)])
def test_nothing_tested_is_said_and_may_be_a_failure(tmp_path: Path, required: str, code: int) -> None:
    for program in ("bash", "dirname", "mktemp", "rm"):  # all that it needs, and no Python
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    env = {"PATH": str(tmp_path), "HOME": os.environ.get("HOME", "/"), "SPOTGUARD_REQUIRE_PYTHONS": required}
    done = subprocess.run(
        [tmp_path / "bash", SCRIPTS / "test-pythons"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "NOTHING WAS TESTED" in done.stderr
    assert "passed on" not in done.stdout


def test_torch_comes_from_the_index_that_is_named_and_stays(tmp_path: Path) -> None:
    """Without an index pip is not asked for torch: its own settings would bring gigabytes."""
    (tmp_path / "scripts").mkdir()
    for name in ("test-pythons", "again"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.13").write_text(PYTHON)
    (tmp_path / "bin" / "python3.13").chmod(0o755)

    def run(index: str) -> list[str]:
        env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "TORCH_INDEX": index, "SPOTGUARD_FLAKY": "flaky"}
        done = subprocess.run(
            [tmp_path / "scripts" / "test-pythons", "-m", "fast"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    _, rest, *ran = run("")
    assert rest.endswith("--group dev --editable .[s3,gcs,azure,metrics,bootstrap]")
    assert ran == [
        "== Python 3.13 without torch",
        "pytest -m fast",
        "test-pythons: passed on Python 3.13 without torch",
    ]
    _, torch, rest, *ran = run(INDEX)
    assert torch.endswith(f"--index-url {INDEX} --no-deps torch")
    assert rest.endswith("--group dev --editable .[s3,gcs,azure,metrics,bootstrap,torch]")
    passed = "test-pythons: passed on Python 3.13 with torch 2.13.0"
    assert ran == ["== Python 3.13 with torch 2.13.0", "pytest -m fast", passed]
    assert run("") == ran
