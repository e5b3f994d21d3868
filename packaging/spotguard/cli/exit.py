"""How whatever a person starts comes to its end: every error is one line and a code.

Codes: 0 done, 1 it could not be done, 2 it was said wrongly, 126 and 127 as a shell says them, 130 Ctrl-C; `run`
answers with its command's own, or with 75. SPOTGUARD_DEBUG=1 shows where an error came from.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable

from spotguard.providers.errors import SpotguardError, UsageError

#: What a write(2) says of a disk that takes no more: stdout's, for every other file is somebody's who translates it.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def ended(work: Callable[[], int]) -> int:
    """Do it, and make one line and a code of every error."""
    _open_what_is_closed()
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()  # at the interpreter's end its error would be a traceback
    except SpotguardError as error:
        return _say(error, 2 if isinstance(error, UsageError) else getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # `spotguard ls … | head`: whoever read us has enough. Python would complain once more when it closes
        # stdout at its end, so that is closed here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:  # noqa: BLE001 - a bug of ours: still one line, with the way to more
        if isinstance(error, FileNotFoundError) and error.filename is None:  # as os.getcwd() says it
            return _say(error, 1, "the current folder is gone: go to one that is there (cd)")
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as above: Python would try once more
            return _say(
                error, 1, f"the answer could not be written: {error.strerror}: look at where stdout goes"
            )
        text = f"{type(error).__name__}: {error}; this is a bug: run it again with SPOTGUARD_DEBUG=1 and report it"
        return _say(error, 1, text)


def _open_what_is_closed() -> None:
    """A stream that is closed (`>&-`) stays so for the command. Here it must be there for who prints, and its number must
    not become a socket's. (What is opened takes the lowest free number, and is not inherited.)"""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _interrupted() -> int:
    """End by SIGINT at a terminal: a shell leaves its loop only when it sees that (https://www.cons.org/cracauer/sigint.html)."""
    from spotguard.agent.process.terminal import in_front

    if in_front():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # no effect on a PID 1
    return 128 + signal.SIGINT


def _say(error: BaseException, code: int, text: str | None = None) -> int:
    if os.environ.get("SPOTGUARD_DEBUG") == "1":
        raise error
    from spotguard.agent.telemetry.logs import LogThread

    # One line also where a foreign message that we quote has several. A reader that does not read, or a stderr that is
    # closed, costs the line and not the exit code.
    line = " ".join((text or str(error)).split())
    last = LogThread(sys.stderr, str)
    last.take(f"spotguard: error: {line}")
    last.close()
    return code
