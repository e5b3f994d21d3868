"""`.spotguard/proof.json`, beside a script: the verdict of `spotguard prove` about its code.

The file travels with the code, by git or in an image. At `register` the process compares its own code with it. A script without
a proof trains as any other: the comparison is for people, and no decision depends on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...providers.redaction import redacted

#: The directory of the file, beside the script.
FOLDER = ".spotguard"
_FORMAT = 1
#: Environment variables of a trial by `spotguard prove`, `doctor --trial` or `simulate failure`. A trial is no run to be proven.
_OF_TRIALS = ("SPOTGUARD_PROVE", "SPOTGUARD_SIMULATED_FAILURE")
#: Directories of installed packages, whose versions stand for them.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Characters of a command that a message shows in full.
_COMMAND = 200

NEVER = "never proven to resume exactly"


def own_script() -> str:
    """Return the path of the script that this process runs; "" for an installed program, a notebook, or `python -c`."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) and not _is_installed(file) else ""


def running_code() -> dict[str, str]:
    """Return a hash of the script and of each loaded module below its directory or the working directory, by path."""
    script = own_script()
    if not script:
        return {}
    below = tuple(f"{folder.rstrip(os.sep)}{os.sep}" for folder in (os.path.dirname(script), os.getcwd()))
    paths = {script}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(".py") and name.partition(".")[0] != "spotguard":
            path = os.path.abspath(file)
            if path.startswith(below) and not _is_installed(path):
                paths.add(path)
    return {path: _hash(path) for path in sorted(paths)}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["spotguard"] = importlib.metadata.version("spotguard")
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = str(torch.__version__).partition("+")[
            0
        ]  # behind the plus: the device that it is built for
    return found


def write(script: Path, proof: Mapping[str, Any], code: Mapping[str, str]) -> Path:
    """Write the proof of a script, beside those of other scripts of its directory, and return the file.

    Args:
        proof: `verdict`, `steps`, `command`, `registered` and `versions`.
        code: the hash of each file, by path.

    Raises:
        OSError: the file cannot be written.
    """
    path = script.parent / FOLDER / "proof.json"
    files = {os.path.relpath(file, script.parent): digest for file, digest in code.items()}
    path.parent.mkdir(exist_ok=True)
    body = {"format": _FORMAT, "proofs": {**_read(path), script.name: {**proof, "files": files}}}
    text = json.dumps(body, indent=1, sort_keys=True) + "\n"
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text(text)
    made.replace(path)
    return path


def judged(registered: Mapping[str, Any]) -> str:
    """Return the verdict about the code of this process, or why there is none; "" for a process without a script of its own.

    Args:
        registered: the registered values, by name.
    """
    script = own_script()
    if not script or any(map(os.environ.get, _OF_TRIALS)):
        return ""
    folder, name = os.path.split(script)
    try:
        proof = _read(Path(folder, FOLDER, "proof.json"))[name]
        other = next(_differences(proof, folder, registered), "")
        return f"proven {other}" if other else f"{proof['verdict']} over {int(proof['steps'])} steps"
    except (KeyError, TypeError, ValueError, AttributeError):  # no proof, or not one of ours
        return NEVER


def is_exact(proof: str) -> bool:
    """Return whether nothing is to be said about what `judged` returned."""
    return not proof or proof.startswith("EXACT ")


def is_verdict(proof: str) -> bool:
    """Return whether the code of this process itself was judged."""
    return proof.startswith(("EXACT ", "INEXACT ", "UNSURE "))


def command() -> str:
    """Return the command that proves the script of this process."""
    own = shlex.join(["python", *redacted(sys.orig_argv[1:])])
    several = os.environ.get("WORLD_SIZE", "1") != "1" or len(own) > _COMMAND
    return f"spotguard prove -- {'COMMAND' if several else own}"


def _differences(proof: Mapping[str, Any], folder: str, registered: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the proof is not of this process's code."""
    files: Mapping[str, str] = proof["files"]
    for path, digest in files.items():  # also those that the script imports later
        if _hash(os.path.join(folder, path)) != digest:
            yield f"with other code: {path} has changed"
    for path in running_code():
        if (below := os.path.relpath(path, folder)) not in files:
            yield f"with other code: {below} is new"
    for name in sorted({*proof["registered"], *registered}):
        if proof["registered"].get(name) != (type(registered[name]).__name__ if name in registered else None):
            yield f"with another registered state: {name} differs"
    for name, here in versions().items():
        if (then := proof["versions"].get(name)) != here:
            yield f"with {name} {then}, and this is {here}"


def _read(path: Path) -> dict[str, Any]:
    """Return the proofs of a file, by the script's name; {} if there is no such file, or it is not one of ours."""
    try:
        body = json.loads(path.read_bytes())
        return dict(body["proofs"]) if body["format"] == _FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _hash(path: str) -> str:
    """Return a hash of a file; "" for one that cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]
    except OSError:
        return ""


def _is_installed(path: str) -> bool:
    real = os.path.realpath(path)
    return not _INSTALLED.isdisjoint(real.split(os.sep)) or real.startswith(_library())


@cache
def _library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[key]) + os.sep for key in ("stdlib", "platstdlib", "scripts"))
