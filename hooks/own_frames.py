"""An error of ours, as a training script shows it: the script's own line and the message, and not the way through us.

The message says what was wrong and what to do. Between it and the script's line stood some 50 lines, ours and an SDK's, twice
over: nobody finds the message in them, least of all in what 8 ranks say at once. So a method that a script calls hands its errors on
without the frames below it, as JAX and Keras do. It is the same exception. What the script was handling when it called, as in
`finally: guard.save()`, is shown as ever; SPOTGUARD_DEBUG=1 shows everything, as it does at the command line.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..providers.errors import SpotguardError, StateError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_our_frames(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """For what a training script calls. What is no error of ours is left alone: it is a bug, and its way is all there is."""

    @functools.wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except SpotguardError as error:
            if os.environ.get("SPOTGUARD_DEBUG") == "1" or _is_of_their_code(error):
                raise
            ours = error
        # Not within the `except`: what is in flight now is the script's own, and becomes the context of this.
        try:
            ours.__cause__ = None
            ours.__suppress_context__ = sys.exception() is None
            raise ours.with_traceback(None)
        finally:
            del ours  # no circle of an exception and the frame that holds it

    return called


def _is_of_their_code(error: SpotguardError) -> bool:
    """An object's own code refused its state: the line to mend is in the frames of what that raised."""
    return isinstance(error, StateError) and error.__cause__ is not None
