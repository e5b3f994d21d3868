"""Search for the command's program, and one-line errors for a program that cannot start.

The exit codes are those of the shell (POSIX 2.8.2): 127 if there is no such command, 126 if it cannot be executed. So a
launcher that reads exit codes sees the same code with and without `spotguard run`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping

from ...providers.errors import SpotguardError

NOT_FOUND = 127
NOT_EXECUTABLE = 126

#: Bytes of a script that execve(2) reads. The interpreter's path ends at a blank, a line end or a zero byte. (A carriage
#: return is part of the path.)
_HEAD = 256
_INTERPRETER = re.compile(rb"#![ \t]*([^ \t\n\0]*)")


class CommandError(SpotguardError):
    """The command cannot be started. `exit_code` is the code with which a shell would exit."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def find(word: str, env: Mapping[str, str]) -> str:
    """Return the program's path: `word` itself if it contains a slash, else the first match on the command's own PATH.

    Raises:
        CommandError: there is no such file, or none that may be executed.
    """
    if not word:
        raise CommandError("the command is an empty word: name a program, as in python", NOT_FOUND)
    if "/" in word:
        candidates = [word] if _exists(word) else []
    else:  # like a shell, skip a directory of that name on PATH
        places = [os.path.join(folder, word) for folder in _path(env)]
        candidates = [place for place in places if os.path.isfile(place)]
    for place in candidates:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    if candidates:
        raise _not_executable(word, candidates[0])
    if os.path.isfile(word):
        hint = (
            f"it is a file in this directory: use ./{word}, or the program that runs it, as in python {word}"
        )
    elif "/" in word:
        hint = "no such file: check the path and the working directory"
    else:
        hint = "name a program on PATH or a path to one, as in python train.py"
    raise CommandError(f"command not found: {word!r}: {hint}", NOT_FOUND)


def _exists(word: str) -> bool:
    try:
        os.stat(word)
    except PermissionError as error:
        hint = "a directory on its path is not accessible: check the permissions (chmod +x)"
        raise CommandError(f"cannot execute {word!r}: {hint}", NOT_EXECUTABLE) from error
    except (OSError, ValueError):  # no such file, or not a path
        return False
    return True


def refusal(word: str, program: str, error: OSError) -> CommandError:
    """Return the error that explains the kernel's refusal to execute `program`."""
    if error.errno == errno.ENOEXEC:
        hint = "it is no program: give it a first line such as #!/usr/bin/env python3, or name what runs it"
    elif error.errno == errno.ENOENT and not _is_script(program):
        hint = "the loader that it needs is not on this machine: it was built for another system"
    elif error.errno == errno.ENOENT:
        hint = "the interpreter that its first line (#!) names is not there: correct that line"
    elif error.errno == errno.E2BIG:
        hint = "its arguments and environment are larger than the kernel takes: pass the long ones in a file"
    else:
        hint = f"{os.strerror(error.errno or 0)}: look at the file and at the file system it is on"
    return CommandError(f"cannot execute {word!r}{_where(word, program)}: {hint}", NOT_EXECUTABLE)


def check_interpreter(word: str, program: str) -> None:
    """Refuse a script whose interpreter the kernel would not execute. An interpreter that is itself a script is not checked.

    Raises:
        CommandError: as `refusal`.
    """
    script = _INTERPRETER.match(_head(program))
    if script is None or script.end() == _HEAD:  # not a script, or a longer path than was read
        return
    interpreter = script[1]
    if not interpreter:
        code = errno.ENOEXEC
    elif not os.path.exists(interpreter):
        code = errno.ENOENT
    elif not (os.path.isfile(interpreter) and os.access(interpreter, os.X_OK)):
        code = errno.EACCES
    else:
        return
    raise refusal(word, program, OSError(code, os.strerror(code)))


def _is_script(program: str) -> bool:
    return _head(program).startswith(b"#!")


def _head(program: str) -> bytes:
    try:
        with open(program, "rb") as file:
            return file.read(_HEAD)
    except OSError:  # executable but not readable: then it is not a script
        return b""


def _path(env: Mapping[str, str]) -> list[str]:
    # An empty entry means the current directory (POSIX 8.3); os.path.join("", word) gives that.
    return env.get("PATH", os.defpath).split(os.pathsep)


def _not_executable(word: str, place: str) -> CommandError:
    if os.path.isdir(place):
        hint = "it is a directory: name a program"
    elif place.endswith(".py"):
        hint = f"it is not executable: use python {word}, or chmod +x {word}"
    else:
        hint = f"it may not be executed: chmod +x {place}"
    return CommandError(f"cannot execute {word!r}{_where(word, place)}: {hint}", NOT_EXECUTABLE)


def _where(word: str, place: str) -> str:
    return "" if place == word else f" ({place})"
