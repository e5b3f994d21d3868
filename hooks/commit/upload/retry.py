"""A failed request of the store: when it is tried again, and how a save with a deadline waits for a store that refuses.

A refusal is often over within seconds: a token is renewed, a permission spreads through a cloud, a clock is set. A save with a
deadline has no better use for its time. So its workers stop, and one thread asks the credential chain and sends the smallest
request until the store accepts it. Then all go on. A save without a deadline ends, and the next one begins later.
"""

from __future__ import annotations

import enum
import logging
import math
import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from ....providers.errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from ....providers.stores.base import BlobStore, Identified
from ...checkpoint.store_probe import StoreProbe
from ...ipc.threads import TaskHandle
from ..cancel_scope import Abandoned, CancelScope, with_last
from .machine_turn import MachineTurn

log = logging.getLogger("spotguard")

# --- what is done about a failed request ---


class RetryPlan(enum.Enum):
    """What a save does about a failed request."""

    #: Sends it again at once, three times in all.
    AT_ONCE = "at once"
    #: Sends it again after a pause.
    PAUSE = "after a pause"
    #: Sends it again when the store accepts requests with what the credential chain gives.
    CREDENTIALS = "after asking the credential chain"
    NEVER = "never"


#: No credentials lift these: a policy of retention (Azure), a read-only file system.
_SETTLED = frozenset({"BlobImmutableDueToPolicy", "EROFS"})
#: The request is to be sent again: S3 while names of a new bucket spread, and portals until somebody has logged in.
#: (RFC 9110, 15.4: these redirects are temporary. 301 and 308 are permanent: the region or the endpoint is wrong.)
_ELSEWHERE_FOR_NOW = frozenset({"302", "303", "307", "Redirect", "TemporaryRedirect"})

#: The plan for each cause. The first row counts whose error and code fit; no codes: every code.
_PLANS: tuple[tuple[type[StoreError], Collection[str], RetryPlan], ...] = (
    (StoreError, _SETTLED, RetryPlan.NEVER),
    (StoreError, _ELSEWHERE_FOR_NOW, RetryPlan.PAUSE),
    # The bytes changed on their way, which tells nothing of the store's load.
    (CorruptError, (), RetryPlan.AT_ONCE),
    (ThrottledError, (), RetryPlan.PAUSE),
    (UnavailableError, (), RetryPlan.PAUSE),
    # The word of a moment: roles and policies take effect some seconds late, in both directions.
    (DeniedError, (), RetryPlan.CREDENTIALS),
    # Nobody makes room or a bucket within a window. A save that ends now still commits its weights.
    (FullError, (), RetryPlan.NEVER),
    (NotFoundError, (), RetryPlan.NEVER),
    # The request itself is wrong: 400, 405, 411.
    (StoreError, (), RetryPlan.NEVER),
)


def retry_plan(error: StoreError, *, hurried: bool) -> RetryPlan:
    """Return what a save does about a failed request.

    Args:
        hurried: the save has a deadline. Without one, only a transient failure and damaged bytes are worth another try.
    """
    plan = next(
        plan
        for kind, codes, plan in _PLANS
        if isinstance(error, kind) and error.code in (codes or (error.code,))
    )
    return plan if hurried or error.transient or plan is RetryPlan.AT_ONCE else RetryPlan.NEVER


# --- the request ---

#: Tries of an object that the store reports as corrupt: it received other bytes than were sent.
_TRIES_AT_ONCE = 3
#: Seconds before the first retry of a request that failed transiently; doubled each time, up to the second number.
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0


def retry(
    scope: CancelScope,
    ask: Callable[[float | None], object],
    hear: Callable[[StoreError], None] = lambda error: None,
    refusals: Refusals | None = None,
    *,
    again: bool = True,
) -> float:
    """Make a request of a store, and retry as `retry_plan` says while the save may go on.

    Args:
        ask: the request, called with the seconds until the deadline.
        hear: called with each failure after which another try might help.
        refusals: what the save's threads share of a store that refuses. None: a refusal ends the save.
        again: whether to retry at all.

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
            if not again and error.transient:
                hear(error)
            if not again or plan is RetryPlan.NEVER or not tries:
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


# --- the wait for a store that refuses ---

#: Seconds between two requests to a store that refuses: at most one a second for each machine, and with jitter, because all
#: machines of a job hear the refusal in the same moment.
_BETWEEN = (1.0, 2.0)
#: Seconds for one of these requests. One that hangs is tried again.
_PROBING = 5.0
#: Seconds between two looks of a thread that waits for the thread that asks.
_LOOK = 0.1


class Refusals:
    """The refusals of one store by which saves of one process wait. The writer's threads share it.

    Args:
        aside: makes a request that nothing waits for, on another thread.
        machine: gives one process of this machine the turn to ask; None: this process is alone.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        aside: Callable[[Callable[[], object]], TaskHandle | None],
        machine: MachineTurn | None = None,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._aside = aside
        self._machine = machine
        self._lock = threading.Lock()
        #: The scope of the request that the store has refused; None: it accepts requests.
        self._refused: CancelScope | None = None
        self._error = StoreError()
        #: Monotonic seconds of the refusal, and of the last smallest request that the store has accepted.
        self._since = self._accepted = -math.inf
        #: The store has accepted the smallest request, and no other since.
        self._unproven = False
        #: The store has then refused another one: a thread's own request must be the test.
        self._misled = False
        #: The save whose thread asks for all, and the save whose refusal is logged.
        self._asking: object = None
        self._logged: object = None
        #: The newest request to the credential chain, and when it counts as hanging, in monotonic seconds.
        self._renewal: TaskHandle | None = None
        self._renewed_by = -math.inf

    @property
    def refused(self) -> bool:
        """Whether a save that still goes on waits for the store."""
        scope = self._refused
        return scope is not None and not scope.abandoned and scope.left() != 0.0

    def heard(self, scope: CancelScope, error: StoreError, began: float) -> None:
        """Note a refusal: from now on no request of the save begins, but those of the thread that asks.

        Args:
            began: monotonic seconds at which the refused request began. The store may accept requests since.
        """
        with self._lock:
            self._error = error
            if self._waits(scope) or began < self._accepted:
                return
            first, self._logged = self._logged is not scope.save, scope.save
            self._misled = self._unproven and not first
            self._refused, self._since = scope, scope.now()
        if first:
            log.warning(
                "the store refuses this save, spotguard asks for newer credentials and tries again until the deadline: %s",
                error,
            )
        self._ask_the_chain(scope.now())

    @contextmanager
    def passage(self, scope: CancelScope, hear: Callable[[StoreError], None]) -> Iterator[None]:
        """Wait until a request of the save may begin, and make it inside.

        Args:
            hear: called with each failure that is no refusal, while this thread asks.

        Raises:
            Abandoned: the save must not go on; the message has the store's last error.
        """
        try:
            alone = self._wait(scope, hear)
        except Abandoned as why:
            raise with_last(why, str(self._error)) from self._error
        try:
            yield
            self._unproven = False
            if alone:
                self._open(scope)
        finally:
            if alone:
                self._end(scope)

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()

    # --- inside ---

    def _waits(self, scope: CancelScope) -> bool:
        refused = self._refused
        return refused is not None and refused.save is scope.save

    def _wait(self, scope: CancelScope, hear: Callable[[StoreError], None]) -> bool:
        """Return whether the thread has the turn to try its own request, for all."""
        while self._waits(scope):
            if self._begin(scope):
                alone = False
                try:
                    alone = self._ask(scope, hear)
                finally:
                    if not alone:
                        self._end(scope)
                if alone:
                    return True
            else:
                scope.pause(_LOOK)
        return False

    def _ask(self, scope: CancelScope, hear: Callable[[StoreError], None]) -> bool:
        """Ask once for all. Return whether the thread's own request must be the next."""
        if self._machine is not None and self._machine.accepted > self._since:
            self._open(scope)
            return False
        if self._machine is not None and not self._machine.take():
            scope.pause(_LOOK)
            return False
        scope.pause(random.uniform(*_BETWEEN))
        self._ask_the_chain(scope.now())
        if self._misled:
            return True
        left = scope.left()
        probe = StoreProbe(self._store, self._run_id, _PROBING if left is None else min(left, _PROBING))
        try:
            probe.write()
        except StoreError as error:
            self._error = error
            if retry_plan(error, hurried=True) is RetryPlan.NEVER:
                raise
            if error.transient:
                hear(error)
            return False
        self._unproven = True
        self._open(scope)
        self._aside(probe.remove)
        return False

    def _ask_the_chain(self, now: float) -> None:
        """Have another thread ask: no answer of a metadata service may take the window."""
        asking = self._renewal is not None and not self._renewal.done.is_set() and now < self._renewed_by
        if isinstance(self._store, Identified) and not asking:
            self._renewed_by = now + 2 * _PROBING
            self._renewal = self._aside(partial(self._store.renew_credentials, timeout=_PROBING))

    def _begin(self, scope: CancelScope) -> bool:
        with self._lock:
            if not self._waits(scope) or self._asking is scope.save:
                return False
            self._asking = scope.save
            return True

    def _end(self, scope: CancelScope) -> None:
        with self._lock:
            if self._asking is not scope.save:
                return  # a later save has taken the turn
            self._asking = None
        if self._machine is not None:
            self._machine.end()

    def _open(self, scope: CancelScope) -> None:
        """Let all requests of the save begin."""
        now = scope.now()
        with self._lock:
            if self._waits(scope):
                log.debug("the store accepts requests again, after %.1f s", now - self._since)
                self._refused, self._accepted = None, now
        if self._machine is not None:
            self._machine.accept(now)
