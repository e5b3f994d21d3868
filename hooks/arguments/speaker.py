"""How a script sees spotguard: short tracebacks, and lines on stderr that name their speaker."""

from __future__ import annotations

import copy
import functools
import logging
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from ...providers.errors import SpotguardError, StateError, StoreError
from .settings import debugging, launched_rank

log = logging.getLogger("spotguard")

# Short tracebacks for spotguard's errors in a training script: the script's own line and the message, without spotguard's frames.
#
# The message says what was wrong and what to do. Some 50 lines stood between it and the script's line, spotguard's and an
# SDK's, twice over. Readers do not find the message in them, least of all in the output of 8 ranks at once. So a public method
# raises its errors without the frames below it, as JAX and Keras do. The exception stays the same object. An exception that the
# script was handling, as in `finally: guard.save()`, is still shown. SPOTGUARD_DEBUG=1 shows everything, as it does at the
# command line.

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_our_frames(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a public method so that spotguard's own errors show no frames of spotguard.

    Every other exception keeps its traceback: it is a bug, and the traceback is all there is to find it.
    """

    @functools.wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except SpotguardError as error:
            if debugging() or _is_of_their_code(error):
                raise
            ours = error
        # Raised outside the `except`: the exception in flight here is the script's own, and becomes the context of this one.
        try:
            ours.__cause__ = None
            ours.__suppress_context__ = sys.exception() is None
            if isinstance(ours, StoreError) and sys.excepthook is sys.__excepthook__:
                sys.excepthook = _in_two_lines
            raise ours.with_traceback(None)
        finally:
            del ours  # breaks the reference cycle between the exception and its frame

    return called


def _is_of_their_code(error: SpotguardError) -> bool:
    """Return whether a registered object's own code refused its state: the traceback of its cause then shows the line to fix."""
    return isinstance(error, StateError) and error.__cause__ is not None


def _in_two_lines(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show a store that cannot be used as the error and the script's line: no line of the script is wrong."""
    place = [each for each in traceback.extract_tb(trace) if each.filename != __file__][-1:]
    if not isinstance(error, StoreError) or not error.__suppress_context__ or not place:
        return sys.__excepthook__(kind, error, trace)
    rank = "" if _handler.rank is None else f"[rank {_handler.rank}]"
    print(f"spotguard{rank}: error: {error}", file=sys.stderr)
    print(f"  at {place[0].filename}:{place[0].lineno}: {place[0].line}", file=sys.stderr)


# The lines on stderr of a training process whose script has set up no logging.
#
# Python then shows a warning as its bare message (`logging.lastResort`), and no reader knows which library wrote it. A handler
# on the logger `spotguard` names the speaker: `spotguard: `, or `spotguard[rank 3]: ` in a job of several ranks. If the script
# has a handler on that logger or above it (even one that does nothing), that handler alone decides.


class _SpeakerHandler(logging.Handler):
    """The handler that shows a record as `logging.lastResort` would, with the speaker's name."""

    def __init__(self) -> None:
        super().__init__()
        #: This process's rank in a job of several ranks; None in a job of one, or while the rank is not known.
        self.rank: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if last is None or record.levelno < last.level or is_set_up(record.name):
            return
        try:
            named = copy.copy(record)
            speaker = "spotguard" if self.rank is None else f"spotguard[rank {self.rank}]"
            named.msg, named.args = f"{speaker}: {record.getMessage()}", ()
        except Exception:  # noqa: BLE001 - arguments that do not fit the message
            self.handleError(record)
            return
        last.handle(named)


_handler = _SpeakerHandler()


def name_the_speaker(rank: int | None = None) -> None:
    """Have each warning and error on stderr begin with its speaker from now on. A second call only sets the rank.

    Args:
        rank: this process's rank in a job of several ranks; None: take it from the launcher's variables.
    """
    _handler.rank = launched_rank() if rank is None else rank
    log.addHandler(_handler)


def is_set_up(name: str = "spotguard") -> bool:
    """Return whether the script has set up logging for this logger: a handler on it or above it would get a record."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not _handler for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
