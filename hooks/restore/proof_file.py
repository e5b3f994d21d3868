"""`.spotguard/proof.json`, beside a script: the verdict of `spotguard prove` about its code.

The file travels with the code, by git or in an image. At `register` the process compares its own code with it. A script without
a proof trains as any other: the comparison is for people, and no decision depends on it. Whoever can write the code may have
written the file: whatever it holds, `register` neither fails nor waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from ...providers.redaction import fingerprints, redacted
from ...providers.text import clip
from ..arguments.settings import is_trial, launched_world

#: The directory of the file, beside the script.
FOLDER = ".spotguard"
_FORMAT = 1
#: Directories of installed packages, whose versions stand for them.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Modules of spotguard's own, and those of the environment: versions stand for them.
_NOT_OWN = frozenset({"spotguard", "_spotguard_prove_startup", "sitecustomize"})
#: Options of an interpreter that reads its code from its command or from a pipe: `-`, `-c`, `-uc`.
_TYPED_CODE = re.compile(r"-([a-zA-Z]*c)?")
_VERDICTS = ("EXACT", "INEXACT", "UNSURE")
#: Characters of a command or of a verdict that a message shows.
_SHOWN = 200
#: The most bytes that are read of a proof, and of a source.
_PROOF_BYTES = 2**20
_SOURCE_BYTES = 2**24

NEVER = "never proven to resume exactly"


def own_script() -> str:
    """Return the path of the script that this process runs; "" for an installed program, a notebook, or `python -c`."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    own = isinstance(file, str) and os.path.isfile(file) and not _is_installed(file)
    return os.path.abspath(str(file)) if own else ""


def running_code() -> dict[str, str]:
    """Return a hash of the script and of each loaded module that is not installed, by path.

    Modules that a library has generated are left out: they lie among the temporary files, under a new name in each process.
    """
    script = own_script()
    if not script:
        return {}
    below = tuple(f"{folder.rstrip(os.sep)}{os.sep}" for folder in (os.path.dirname(script), os.getcwd()))
    paths = {script}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(".py") and name.partition(".")[0] not in _NOT_OWN:
            path = os.path.abspath(file)
            generated = not path.startswith(below) and path.startswith(tempfile.gettempdir() + os.sep)
            if not generated and not _is_installed(path):
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
        proof: `verdict`, `steps`, `arguments`, `registered` and `versions`.
        code: the hash of each file, by path.

    Raises:
        OSError: the file cannot be written.
        ValueError: the file there is not one of ours, and stays as it is.
    """
    path = script.parent / FOLDER / "proof.json"
    files = {os.path.relpath(file, script.parent): digest for file, digest in code.items()}
    path.parent.mkdir(exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")
    held = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the last of two writers counts
            fcntl.flock(held, fcntl.LOCK_EX)
        others = _read(path) if os.path.lexists(path) else {}
        body = {"format": _FORMAT, "proofs": {**others, script.name: {**proof, "files": files}}}
        made.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
        os.close(held)
    return path


def judged(registered: Mapping[str, Any]) -> str:
    """Return the verdict about the code of this process, or why there is none; "" for a process without a script of its own.

    Args:
        registered: the registered values, by name.
    """
    script = own_script()
    if not script or is_trial():  # a trial is no run to be proven
        return ""
    folder, name = os.path.split(script)
    try:
        proof = _read(Path(folder, FOLDER, "proof.json"))[name]
        verdict, steps = proof["verdict"], proof["steps"]
        if verdict not in _VERDICTS or type(steps) is not int or steps < 1:
            return NEVER
        if other := next(_differences(proof, folder, registered), ""):
            return clip(f"proven {other}", _SHOWN)
        same = proof["arguments"] == fingerprints(sys.argv[1:])
        return clip(f"{verdict} over {steps} steps{'' if same else ', for other arguments'}", _SHOWN)
    except Exception:  # noqa: BLE001  no proof, or not one of ours: training must not end for what anybody can write
        return NEVER


def is_exact(proof: str) -> bool:
    """Return whether nothing is to be said about what `judged` returned."""
    return not proof or proof.startswith("EXACT ")


def is_verdict(proof: str) -> bool:
    """Return whether the code of this process itself was judged."""
    return proof.startswith(tuple(f"{verdict} " for verdict in _VERDICTS))


def command() -> str:
    """Return the command that proves the script of this process, with COMMAND for what nobody would type."""
    python, *words = sys.orig_argv
    own = shlex.join([os.path.basename(python), *redacted(words)])
    several = launched_world() != "1"
    typed = any(map(_TYPED_CODE.fullmatch, takewhile(lambda word: word.startswith("-"), words)))
    unfit = several or typed or len(own) > _SHOWN or not own.isprintable()
    return f"spotguard prove -- {'COMMAND' if unfit else own}"


def _differences(proof: Mapping[str, Any], folder: str, registered: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the proof is not of this process's code."""
    files: Mapping[str, str] = proof["files"]
    for path, digest in files.items():  # also those that the script imports later
        if not digest or _hash(os.path.join(folder, path)) != digest:
            yield f"with other code: {path} has changed"
    known = {(os.path.basename(path), digest) for path, digest in files.items()}  # a mount links to its files
    for path, digest in running_code().items():
        below = os.path.relpath(path, folder)
        if below not in files and (os.path.basename(path), digest) not in known:
            yield f"with other code: {below} is new"
    for name in sorted({*proof["registered"], *registered}):
        if proof["registered"].get(name) != (type(registered[name]).__name__ if name in registered else None):
            yield f"with another registered state: {name} differs"
    for name, here in versions().items():
        if (then := proof["versions"].get(name)) != here:
            yield f"with {name} {then}, and this is {here}"


def _read(path: Path) -> dict[str, Any]:
    """Return the proofs of a file, by the script's name.

    Raises:
        OSError: there is no such file.
        ValueError: it is not one of ours.
    """
    try:
        body = json.loads(_content(path, _PROOF_BYTES))
        if type(body["format"]) is int and body["format"] == _FORMAT and isinstance(body["proofs"], dict):
            return body["proofs"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path} is not a proof file of format {_FORMAT}")


def _hash(path: str) -> str:
    """Return a hash of a file; "" for one that cannot be read."""
    try:
        return hashlib.sha256(_content(path, _SOURCE_BYTES)).hexdigest()[:32]
    except OSError:
        return ""


def _content(path: str | Path, most: int) -> bytes:
    """Return what a file holds.

    Raises:
        OSError: it cannot be read, is larger than `most`, or is no regular file: a pipe or a device may never end.
    """
    if not os.path.isfile(path):
        raise OSError(f"{path} is not a regular file")
    # The file may have become a pipe since.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"{path} has more than {most:,} bytes")
    return content


def _is_installed(path: str) -> bool:
    real = os.path.realpath(path)
    return not _INSTALLED.isdisjoint(real.split(os.sep)) or real.startswith(_library())


@cache
def _library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[key]) + os.sep for key in ("stdlib", "platstdlib", "scripts"))
