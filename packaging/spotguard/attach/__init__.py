"""`spotguard run --attach`: guard a training whose script has no line of spotguard.

`path` holds a `sitecustomize` that Python runs before the script. It loads `import_watch`, which waits for a framework's Trainer to be
imported, and `trainers` then attaches the adapter of `spotguard.integrations` as training begins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .import_watch import VARIABLE


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return what a command's environment needs beside `env`, for Trainers to attach themselves in its Pythons."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).with_name("path")), env.get("PYTHONPATH"))))
    return {VARIABLE: "yes", "PYTHONPATH": path}
