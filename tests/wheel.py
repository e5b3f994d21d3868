"""The wheel of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """Built in `folder` from a copy, so that a stale `build/` can add nothing."""
    copy, dist = folder / "copy", folder / "dist"
    for room in ("agent", "hooks", "providers", "packaging"):
        shutil.copytree(ROOT / room, copy / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    # No isolation: the backend is here already, and a test fetches nothing.
    command = [sys.executable, "-Im", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = dist.iterdir()
    return wheel
