"""One line for each run of a store: its state, and whether it trains without a checkpoint.

`all_runs` lists the store once, and makes a handful of small requests for each run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from spotguard.hooks.ipc.threads import side_by_side
from spotguard.providers.run_id import is_run_id
from spotguard.providers.stores.base import BlobStore, ObjectInfo

from .attempts import end_of, first_error, last_sign, rhythm, stands, trains
from .facts import AttemptFacts, EventFact, number
from .reading import RunListing

#: A checkpoint older than this many intervals, and than this many seconds, is late; and than these, if no interval is known.
_LATE_INTERVALS, _LATE, _LATE_UNKNOWN = 2, 300.0, 1800.0
#: Records of notices that are read of a run.
_NOTICES = 4


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of a store."""

    run_id: str
    #: "training", "stalled", "silent", "notice", "error", "false-error", "ended", "interrupted" or "left"; "" if nothing of it is readable.
    state: str
    #: The newest attempt trains and makes no checkpoints: it has none, or none for longer than its interval.
    late: bool
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
    last = listing.attempts[-1]
    own = listing.complete.get(last, [])
    history = listing.history(own[0] if own else None)
    newest = listing.attempt(last, history, notices=_NOTICES)
    failed = max((each for each in listing.attempts if _failed(listing, each)), default=None)
    failures = listing.events(failed, 1) if failed is not None and failed != last else ()
    return reckon_line(listing, now, newest, failed=failed, failures=failures)


def _failed(listing: RunListing, attempt: int) -> bool:
    return bool(listing.records[attempt]["failures"]) and f"failure-{attempt:04d}" not in listing.dismissed


def reckon_line(
    listing: RunListing,
    now: float,
    newest: AttemptFacts,
    *,
    failed: int | None,
    failures: tuple[EventFact, ...],
) -> RunLine:
    """Return a run's line. Pure.

    Args:
        listing: the run's listing.
        now: wall seconds.
        newest: the newest attempt.
        failed: the newest attempt that an error ended; None for none.
        failures: its events, if it is not the newest.
    """
    whole, end, sign = listing.newest, end_of(newest), last_sign(newest)
    dates = [each.at for each in newest.checkpoints]
    alive = "stalled" if stands(newest) else "training"
    state = end.kind if end is not None else alive if trains(newest, now) else "silent"
    since = dates[-1] if dates else newest.started
    apart = rhythm(newest.history, dates)
    late = max(_LATE, _LATE_INTERVALS * apart) if apart else _LATE_UNKNOWN
    own = first_error(newest.events)
    error = own if own is not None else first_error(failures)
    return RunLine(
        run_id=listing.run_id,
        state=state,
        late=state == "training" and since is not None and now - since > late,
        step=None if whole is None else whole.name.step,
        checkpoint=None if whole is None else str(whole.name),
        age=None if whole is None else max(0.0, now - whole.put),
        interval=number(newest.history, "interval"),
        attempts=len(listing.attempts),
        quiet=None if sign is None else max(0.0, now - sign),
        failure="" if error is None else error.text,
        failed_attempt=newest.number if own is not None else failed,
        failed_at=None if error is None else error.at,
    )
