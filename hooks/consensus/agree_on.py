"""New."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from ..checkpoint.catalog import CheckpointGone
from ..checkpoint.format.codec import NewerFormatError
from .channel import Channel

#: Seconds for anything else that they wait for each other with.
PATIENCE = 300.0


#: By which name an error crosses; whoever hears another one takes it for the store's.
_ERRORS: dict[str, type[SpotguardError]] = {
    cls.__name__: cls
    for cls in (
        StateError,
        StoreError,
        CheckpointError,
        NewerFormatError,
        UsageError,
        AllDamagedError,
        RefusedError,
    )
}


_T = TypeVar("_T", int, str)


def of_the_first(channel: Channel, ask: Callable[[], _T]) -> _T:
    """What the first rank gets, for all; its error, where it fails."""
    mine: bytes | None = None
    error: Exception | None = None
    if channel.rank == 0:
        mine, error = _tried(ask)
    said = json.loads(channel.tell(mine, PATIENCE))
    if error is not None:
        raise error
    if "error" in said:
        raise _heard(said, 0)
    got: _T = said["got"]
    return got


def of_all(channel: Channel, ask: Callable[[], object]) -> list[Any]:
    """What each rank gets, in order, as JSON has it; its error, where one fails, and for that one as it was."""
    mine, error = _tried(ask)
    everybody = [json.loads(each) for each in channel.gather(mine, PATIENCE)]
    if error is not None:
        raise error
    for rank, theirs in enumerate(everybody):
        if "error" in theirs:
            raise _heard(theirs, rank)
    return [theirs["got"] for theirs in everybody]


def _tried(ask: Callable[[], object]) -> tuple[bytes, Exception | None]:
    """What to tell the others of it: they are not to wait for a rank that fails; and the error, for this one."""
    try:
        return json.dumps({"got": ask()}).encode(), None
    except Exception as why:  # noqa: BLE001 anybody's own code, or no memory
        return json.dumps(_as_said(_ours(why))).encode(), why


def _ours(error: Exception) -> SpotguardError:
    """Itself, or what is said in its place."""
    if isinstance(error, SpotguardError):
        return error
    ours = StateError(f"{type(error).__name__}: {' '.join(str(error).split())}")
    ours.__cause__ = error
    return ours


def _as_said(error: SpotguardError) -> dict[str, Any]:
    damage = isinstance(error, (CheckpointError, CorruptError, NotFoundError))
    damage = damage and not isinstance(error, (NewerFormatError, StateError))
    kind = next((name for name, cls in _ERRORS.items() if type(error) is cls), "")
    if not kind:
        kind = "StateError" if isinstance(error, StateError) else "StoreError"
    gone = isinstance(error, (CheckpointGone, NotFoundError))
    return {"error": kind, "why": str(error), "damage": damage, "gone": gone}


def _heard(said: dict[str, Any], rank: int) -> SpotguardError:
    return _ERRORS.get(str(said.get("error")), StoreError)(f"rank {rank}: {said.get('why')}")
