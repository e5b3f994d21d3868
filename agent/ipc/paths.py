"""The path of the agent's Unix socket: in the run's own directory, or in the service's."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ...providers.errors import UsageError
from ...providers.run_id import RUN_ID, is_run_id

SERVICE_SOCKET = Path("/run/spotguard/agent.sock")


#: Bytes. unix(7): `sun_path` has 108 bytes, and the last one is the terminator.
LONGEST = 107


def runtime_folder(env: Mapping[str, str], uid: int) -> Path:
    """Return the directory of this user's sockets: short-lived and private, so that no other user can forge a socket."""
    base = env.get("XDG_RUNTIME_DIR", "")
    if base and os.path.isdir(base):
        return Path(base, "spotguard")
    return Path(f"/tmp/spotguard-{uid}")


def default_socket(run_id: str, env: Mapping[str, str], uid: int) -> Path:
    """Return the path of this run's socket.

    Raises:
        UsageError: the run id cannot be a file's name.
    """
    if not is_run_id(run_id):
        raise UsageError(f"run id {run_id!r} cannot name a socket: use {RUN_ID}")
    return runtime_folder(env, uid) / f"{run_id}.sock"


def path_of(configured: str | None, run_id: str, env: Mapping[str, str], uid: int) -> Path:
    """Return the path at which a run listens: `configured` if `--socket` is set, else the default for its run id."""
    return Path(configured) if configured else default_socket(run_id, env, uid)


def lives_there(folder: Path, env: Mapping[str, str], uid: int) -> bool:
    """Return whether the agent creates a missing socket directory here.

    It does in the system's or the user's own runtime directory, which a boot or a logout empties. Anywhere else a missing
    directory is most likely a typing error, and a new directory would be clutter.
    """
    default = runtime_folder(env, uid)
    runtime = {Path("/run"), default.parent} - {Path("/tmp")}
    return folder == default or not runtime.isdisjoint(folder.parents)


def is_socket(path: Path) -> bool:
    """Return whether there is a socket at `path`.

    Raises:
        PermissionError: its directory does not let this user see it. (`Path.is_socket` returns False then, from Python 3.14 on.)
    """
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except PermissionError:
        raise
    except OSError:  # it does not exist, or cannot be reached
        return False
