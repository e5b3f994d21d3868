"""A failed request of the store: when it is tried again, and what is checked after an outage.

A store that went back to an earlier state after an outage has lost objects. One of the writer's threads lists the save's objects
as soon as the store answers again, so that no manifest names a lost object.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from ....providers.errors import StoreError
from ....providers.stores.base import BlobStore
from ..cancel_scope import Abandoned, CancelScope, with_last
from .refusals import Refusals, RetryPlan, retry_plan
from .transfer import Transfer

log = logging.getLogger("spotguard")

#: Tries of an object that the store reports as corrupt: it received other bytes than were sent.
_TRIES_AT_ONCE = 3
#: Seconds before the first retry of a request that failed transiently; doubled each time, up to the second number.
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0
#: Seconds for one listing. A listing that hangs is tried again.
_LISTING = 5.0


def retry(
    scope: CancelScope,
    ask: Callable[[float | None], object],
    hear: Callable[[StoreError], None] = lambda error: None,
    refusals: Refusals | None = None,
) -> float:
    """Make a request of a store, and retry as `retry_plan` says while the save may go on.

    Args:
        ask: the request, called with the seconds until the deadline.
        hear: called with each failure that is retried.
        refusals: what the save's threads share of a store that refuses. None: a refusal ends the save.

    Returns:
        Seconds of the successful try.

    Raises:
        Abandoned: the save must not go on; the message has the store's last error.
        StoreError: the store failed, and another try would not help.
    """
    pause, tries = _RETRY_FIRST, _TRIES_AT_ONCE
    scope.check()
    while True:
        try:
            with nullcontext() if refusals is None else refusals.passage(scope, hear):
                began = scope.now()
                ask(scope.left())
                return scope.now() - began
        except StoreError as error:
            last, plan = error, retry_plan(error, hurried=refusals is not None and scope.hurried)
            tries -= plan is RetryPlan.AT_ONCE
            if plan is RetryPlan.NEVER or not tries:
                raise
        try:
            if scope.left() == 0.0:
                scope.check()  # the save's own end cut the request off, which is no failure of the store
            hear(last)
            if plan is RetryPlan.AT_ONCE:
                scope.check()
                continue
            if plan is RetryPlan.CREDENTIALS and refusals is not None:
                refusals.heard(scope, last, began)
                continue
            scope.pause(pause)
        except Abandoned as why:
            raise with_last(why, str(last)) from last
        pause = min(2 * pause, _RETRY_MOST)


def try_once(
    scope: CancelScope, ask: Callable[[float | None], object], hear: Callable[[StoreError], None]
) -> float:
    """Make a request of a store without a retry. The arguments and the result are those of `retry`.

    Raises:
        StoreError: the store failed; `hear` was called if another try might help.
    """
    began = scope.now()
    try:
        ask(scope.left())
    except StoreError as error:
        if error.transient:
            hear(error)
        raise
    return scope.now() - began


def look_again(
    store: BlobStore, work: Transfer, doubted: Mapping[int, str], refusals: Refusals | None = None
) -> None:
    """List the `doubted` objects by their keys, and have the save put those again that are gone or have another size."""
    objects = work.write_progress.write_plan.objects
    sizes: dict[str, int] = {}
    failures = 0

    def look(left: float | None) -> None:
        nonlocal failures
        failures = work.failures
        sizes.clear()
        for folder in {key.rpartition("/")[0] + "/" for key in doubted.values()}:
            listed = store.list(folder, timeout=_LISTING if left is None else min(left, _LISTING))
            sizes.update((info.key, info.size) for info in listed)

    retry(work.part, look, work.hear, refusals)
    lost = [index for index, key in doubted.items() if sizes.get(key) != objects[index].size]
    if lost:
        log.warning(
            "the store has failed and lost %d objects of this save: spotguard uploads them again", len(lost)
        )
    work.looked(failures, doubted, lost)
