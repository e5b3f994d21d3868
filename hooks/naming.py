"""The names that `spotguard run` and a bare `register` choose by themselves, the same ones for the same job."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

#: The folder, in the working folder, where checkpoints go unless a store is given.
STORE_FOLDER = "spotguard-checkpoints"


def default_run_id(command: Sequence[str], folder: str) -> str:
    """The script's name and a hash of command and folder: stable across restarts, different for other arguments.

    `command` is as the kernel got it (`sys.orig_argv`): ["python", "train.py", "--lr", "0.1"].
    """
    words = [word for word in command[1:] if not word.startswith("-")]
    # A launcher's options have values of their own (`torchrun --nproc-per-node 2 train.py`): a script has its suffix.
    plain = words[0] if words else (command[0] if command else "run")
    script = next((word for word in words if word.endswith(".py")), plain)
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-")[:40] or "run"
    # The interpreter's path differs between machines and virtual environments; the job is the same.
    said = [os.path.basename(command[0]), *command[1:]] if command else []
    digest = hashlib.sha256("\0".join([folder, *said]).encode(errors="surrogateescape")).hexdigest()
    return f"{stem}-{digest[:8]}"


def default_store(folder: str) -> str:
    return f"{Path(folder, STORE_FOLDER).as_uri()}"
