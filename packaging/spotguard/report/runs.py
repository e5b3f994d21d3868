"""All runs of a store, one line each: which of them train, and which train without a checkpoint.

One listing of the store, and at most a handful of small requests for each run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotguard.hooks.checkpoint.catalog import side_by_side
from spotguard.providers.run_id import is_run_id
from spotguard.providers.stores.base import BlobStore, ObjectInfo

from .attempts import quiet, rhythm
from .facts import EventFact, number
from .reading import RunListing

#: A checkpoint older than this many intervals, and than this many seconds, is late.
_LATE_INTERVALS, _LATE = 2, 300.0


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of a store."""

    run_id: str
    #: "training", "silent", "notice", "error", "ended" or "interrupted"; "" if nothing of it is readable.
    state: str
    #: The newest attempt makes no checkpoints: it has none, or none for longer than its interval. Its end is not known.
    blind: bool
    #: Completed steps, name and age in seconds of the newest complete checkpoint; None if there is none.
    step: int | None
    checkpoint: str | None
    age: float | None
    #: Seconds between background checkpoints; None if they are off, or not known.
    interval: float | None
    attempts: int
    #: Seconds since the newest sign of the run.
    quiet: float | None
    #: The newest error that ended an attempt, and that attempt; "" and None if there was none.
    failure: str
    failed_attempt: int | None
    failed_at: float | None


def all_runs(store: BlobStore, now: float, only: str | None = None) -> list[RunLine]:
    """Return a line for each run of a store.

    Args:
        store: the store.
        now: wall seconds.
        only: the one run that is meant; None for all.

    Raises:
        StoreError: the store failed.
    """
    found: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in store.list("" if only is None else f"{only}/"):
        run_id, _, rest = info.key.partition("/")
        # A bucket may hold other things, too.
        if rest and is_run_id(run_id):
            found[run_id].append(info)
    listings = [RunListing(store, run_id, infos) for run_id, infos in found.items()]
    return side_by_side(lambda each: _read(each, now), [each for each in listings if each.attempts])


def _read(listing: RunListing, now: float) -> RunLine:
    newest = listing.attempts[-1]
    own = listing.complete.get(newest, [])
    history = listing.history(own[0] if own else None)
    record = listing.claim(newest)
    failed = max((each for each in listing.attempts if listing.records[each]["failures"]), default=None)
    failures = listing.events(failed) if failed is not None and failed != newest else ()
    return reckon_line(
        listing,
        now,
        history=history,
        started=record.created if record is not None else None,
        events=listing.events(newest),
        failed=failed,
        failures=failures,
    )


def reckon_line(
    listing: RunListing,
    now: float,
    *,
    history: Mapping[str, Any],
    started: float | None,
    events: tuple[EventFact, ...],
    failed: int | None,
    failures: tuple[EventFact, ...],
) -> RunLine:
    """Return a run's line. Pure.

    Args:
        listing: the run's listing.
        now: wall seconds.
        history: the history that the newest attempt's newest checkpoint carries.
        started: wall seconds of the newest attempt's start; None if not known.
        events: the events of the newest attempt.
        failed: the newest attempt that an error ended; None for none.
        failures: its events, if it is not the newest.
    """
    newest, whole = listing.attempts[-1], listing.newest
    own = listing.complete.get(newest, [])
    saved = own[0].put if own else None
    ends = [each for each in events if each.kind in ("error", "ended", "interrupted", "left")]
    notices = [each for each in events if each.kind == "notice"]
    # A checkpoint of a later step shows that training went on. The dates of two clocks alone would not.
    if not ends and notices and (not own or own[0].name.step <= (notices[-1].step or 0)):
        ends = notices
    signs = [each for each in (listing.touched.get(newest), started) if each]
    silence = max(0.0, now - max(signs)) if signs else None
    apart = rhythm(history, [each.put for each in own[1::-1]])
    state = (
        ends[-1].kind if ends else "training" if silence is not None and silence <= quiet(apart) else "silent"
    )
    since = saved if saved is not None else started
    late = max(_LATE, _LATE_INTERVALS * apart) if apart else quiet(apart)
    error = next((each for each in reversed((*failures, *events)) if each.kind == "error"), None)
    return RunLine(
        run_id=listing.run_id,
        state=state,
        blind=not ends and since is not None and now - since > late,
        step=None if whole is None else whole.name.step,
        checkpoint=None if whole is None else str(whole.name),
        age=None if whole is None else max(0.0, now - whole.put),
        interval=number(history, "interval"),
        attempts=len(listing.attempts),
        quiet=silence,
        failure="" if error is None else error.text,
        failed_attempt=newest if error in events else failed,
        failed_at=None if error is None else error.at,
    )
