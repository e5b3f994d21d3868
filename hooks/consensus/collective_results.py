"""Results that all ranks share: of a question to the first rank, or to every rank. If one rank fails, all of them raise."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from ...providers.errors import (
    AllDamagedError,
    CheckpointError,
    CorruptError,
    NotFoundError,
    RefusedError,
    SpotguardError,
    StateError,
    StoreError,
    UsageError,
)
from ...providers.text import key_list
from ..checkpoint.catalog import CheckpointGone
from ..checkpoint.format.codec import UnsupportedFormatError
from .channel import Channel

#: Seconds for which ranks wait for each other, if the caller sets no other limit.
PATIENCE = 300.0


#: Errors by the name that is sent to the other ranks. The receiving rank raises an unknown name as a `StoreError`.
_ERRORS: dict[str, type[SpotguardError]] = {
    cls.__name__: cls
    for cls in (
        StateError,
        StoreError,
        CheckpointError,
        UnsupportedFormatError,
        UsageError,
        AllDamagedError,
        RefusedError,
    )
}


_T = TypeVar("_T", int, str)


def result_of_first_rank(
    channel: Channel, ask: Callable[[], _T], patience: float = PATIENCE, *, silence: float | None = None
) -> _T:
    """Call `ask` on the first rank and return its result on all ranks. If it fails, all ranks raise its error.

    Args:
        ask: the question.
        patience: seconds until the result must be there.
        silence: seconds without a beat of the first rank after which it counts as dead; None: it sends no beats.
    """
    mine: bytes | None = None
    error: Exception | None = None
    if channel.rank == 0:
        with nullcontext() if silence is None else channel.meetings.beating():
            mine, error = _tried(ask)
    if silence is None:
        answer = json.loads(channel.meetings.tell(mine, patience))
    else:
        answer = json.loads(channel.meetings.gather(mine or b"", patience, silence=silence)[0])
    if error is not None:
        raise error
    if "error" in answer:
        raise error_of(answer, 0)
    got: _T = answer["got"]
    return got


def results_of_all_ranks(channel: Channel, ask: Callable[[], object]) -> list[Any]:
    """Call `ask` on every rank and return all results, as JSON decodes them, in the order of ranks.

    If it fails on one rank, that rank raises the original exception. The others raise the error that it has sent.
    """
    mine, error = _tried(ask)
    answers = [json.loads(each) for each in channel.meetings.gather(mine, PATIENCE)]
    if error is not None:
        raise error
    for rank, theirs in enumerate(answers):
        if "error" in theirs:
            raise error_of(theirs, rank)
    return [theirs["got"] for theirs in answers]


def _tried(ask: Callable[[], object]) -> tuple[bytes, Exception | None]:
    """Return the message for the other ranks, and the exception for this one.

    A rank that fails sends a message too, so that the others do not wait for it.
    """
    try:
        return json.dumps({"got": ask()}).encode(), None
    except Exception as why:  # noqa: BLE001 a user's own code may raise anything, or memory ran out
        return json.dumps(as_verdict(as_our_error(why))).encode(), why


def as_our_error(error: Exception) -> SpotguardError:
    """Return the error itself if it is spotguard's, else a `StateError` in its place."""
    if isinstance(error, SpotguardError):
        return error
    ours = StateError(f"{type(error).__name__}: {' '.join(str(error).split())}")
    ours.__cause__ = error
    return ours


def as_verdict(error: SpotguardError) -> dict[str, Any]:
    damage = isinstance(error, (CheckpointError, CorruptError, NotFoundError))
    damage = damage and not isinstance(error, (UnsupportedFormatError, StateError))
    kind = next((name for name, cls in _ERRORS.items() if type(error) is cls), "")
    if not kind:
        kind = "StateError" if isinstance(error, StateError) else "StoreError"
    gone = isinstance(error, (CheckpointGone, NotFoundError))
    return {
        "error": kind,
        "why": str(error),
        "damage": damage,
        "gone": gone,
        "objects": key_list(error.objects),
    }


def error_of(message: dict[str, Any], rank: int) -> SpotguardError:
    return _ERRORS.get(str(message.get("error")), StoreError)(f"rank {rank}: {message.get('why')}")
