"""The end of every command: each error becomes one line on stderr and an exit code.

Codes: 0 success, 1 failure, 2 usage error, 126 and 127 as in a shell, 130 Ctrl-C. `run` exits with its command's own code,
or with 75. SPOTGUARD_DEBUG=1 shows the traceback of an error.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable

from spotguard.providers.errors import SpotguardError, UsageError

#: Errors of write(2) on a full disk. Here they can only come from stdout: the writer of any other file translates its errors.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def ended(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code. Turn every error into one line and a code."""
    _open_what_is_closed()
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()  # an error at the interpreter's end would be a traceback
    except SpotguardError as error:
        return _say(error, 2 if isinstance(error, UsageError) else getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # `spotguard ls … | head`: the reader has enough. Python would report the error once more when it closes stdout at its
        # end, so stdout goes to /dev/null here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:  # noqa: BLE001 - a bug of spotguard: still one line, which says how to see more
        if isinstance(error, FileNotFoundError) and error.filename is None:  # the form of os.getcwd()'s error
            return _say(error, 1, "the working directory is gone: change to another one (cd)")
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as above: Python would write once more at its end
            return _say(
                error, 1, f"the answer could not be written: {error.strerror}: look at where stdout goes"
            )
        text = f"{type(error).__name__}: {error}; this is a bug: run it again with SPOTGUARD_DEBUG=1 and report it"
        return _say(error, 1, text)


def _open_what_is_closed() -> None:
    """Open /dev/null in place of each closed standard stream (`>&-`).

    Code that prints needs the stream, and its number must not become a socket's. `os.open` takes the lowest free number. The
    command does not inherit the new descriptor, so the stream stays closed for the command.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _interrupted() -> int:
    """End by SIGINT at a terminal, else return 130.

    A shell leaves its loop only if it sees that SIGINT ended the process (https://www.cons.org/cracauer/sigint.html).
    """
    from spotguard.agent.process.terminal import in_front

    if in_front():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # no effect on a PID 1
    return 128 + signal.SIGINT


def _say(error: BaseException, code: int, text: str | None = None) -> int:
    if os.environ.get("SPOTGUARD_DEBUG") == "1":
        raise error
    from spotguard.agent.telemetry.logs import LogThread

    # The error stays one line, even if it quotes a message of several lines from another program. If nobody reads stderr, or
    # stderr is closed, only the line is lost and not the exit code.
    line = " ".join((text or str(error)).split())
    last = LogThread(sys.stderr, str)
    last.take(f"spotguard: error: {line}")
    last.close()
    return code
