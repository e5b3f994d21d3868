"""Where the agent's Unix socket lies: the run's own folder, or the service's."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ...providers.errors import UsageError
from ...providers.run_id import RUN_ID, is_run_id

SERVICE_SOCKET = Path("/run/spotguard/agent.sock")


#: unix(7): `sun_path` has 108 bytes, one of them for the end.
LONGEST = 107


def runtime_folder(env: Mapping[str, str], uid: int) -> Path:
    """Where this user's sockets lie: short-lived, private, and no shared temporary name that can be forged."""
    base = env.get("XDG_RUNTIME_DIR", "")
    if base and os.path.isdir(base):
        return Path(base, "spotguard")
    return Path(f"/tmp/spotguard-{uid}")


def default_socket(run_id: str, env: Mapping[str, str], uid: int) -> Path:
    """The socket of this run.

    Raises:
        UsageError: the run id cannot be a file's name.
    """
    if not is_run_id(run_id):
        raise UsageError(f"run id {run_id!r} cannot name a socket: use {RUN_ID}")
    return runtime_folder(env, uid) / f"{run_id}.sock"


def path_of(said: str | None, run_id: str, env: Mapping[str, str], uid: int) -> Path:
    """Where a run listens: at what was said, else by its id."""
    return Path(said) if said else default_socket(run_id, env, uid)


def lives_there(folder: Path, env: Mapping[str, str], uid: int) -> bool:
    """Whether a folder of sockets is made where it is missing: in the system's or the user's own runtime folder, which a
    boot or a logout empties. Anywhere else a missing one is a slip of the pen, and what would be made is litter."""
    default = runtime_folder(env, uid)
    runtime = {Path("/run"), default.parent} - {Path("/tmp")}
    return folder == default or not runtime.isdisjoint(folder.parents)


def is_socket(path: Path) -> bool:
    """Whether a socket lies there.

    Raises:
        PermissionError: its folder lets us not see it. (`Path.is_socket` calls that False from Python 3.14 on.)
    """
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except PermissionError:
        raise
    except OSError:  # nothing there, or no way to it
        return False
