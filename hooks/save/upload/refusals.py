"""A store's refusals: what a save does about each failed request, and how a save with a deadline waits for a store that refuses.

A refusal is often over within seconds: a token is renewed, a permission spreads through a cloud, a clock is set. A save with a
deadline has no better use for its time. So its workers stop, and one thread asks the credential chain and sends the smallest
request until the store accepts it. Then all go on. A save without a deadline ends, and the next one begins later.
"""

from __future__ import annotations

import enum
import fcntl
import logging
import math
import os
import random
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

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
from ..cancel_scope import Abandoned, CancelScope, with_last

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
        aside: Callable[[Callable[[], object]], None],
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
        #: The credential chain is asked now.
        self._renewing = False

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
        self._ask_the_chain()

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
        self._ask_the_chain()
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

    def _ask_the_chain(self) -> None:
        """Have another thread ask: no answer of a metadata service may take the window."""
        if isinstance(self._store, Identified) and not self._renewing:
            self._renewing = True
            self._aside(partial(self._renew, self._store))

    def _renew(self, store: Identified) -> None:
        try:
            store.renew_credentials(timeout=_PROBING)
        finally:
            self._renewing = False

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


# --- the processes of one machine ---


class MachineTurn:
    """The turn to ask a store that refuses, which the processes of one run on one machine take one after the other.

    It is a lock on a file in the directory for temporary files, which the kernel releases if a process dies. The file holds the
    monotonic seconds at which the store last accepted a request, so that the other processes go on too. Processes that do not
    share the directory (containers) each ask.
    """

    def __init__(self, url: str, run_id: str) -> None:
        name = sha256(f"{os.geteuid()} {url} {run_id}".encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir()) / f"spotguard-refused-{name}"
        #: The open and locked file, while this process has the turn.
        self._file: int | None = None

    def take(self) -> bool:
        """Return whether this process may ask. If there can be no such file, each process asks."""
        try:
            file = self._open()
        except OSError as error:
            log.debug("each process of this machine asks the store: %s", error)
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            return not isinstance(error, BlockingIOError)
        self._file = file
        return True

    def end(self) -> None:
        """Give the turn back."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def accept(self, now: float) -> None:
        """Note that the store has accepted a request of this process, if the process has the turn."""
        if self._file is not None:
            os.pwrite(self._file, struct.pack("d", now), 0)

    @property
    def accepted(self) -> float:
        """Monotonic seconds at which the store last accepted such a request of any process."""
        try:
            file = self._open()
        except OSError:
            return -math.inf
        try:
            held = os.pread(file, struct.calcsize("d"), 0)
        finally:
            os.close(file)
        return float(struct.unpack("d", held)[0]) if held else -math.inf

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._path.unlink()

    def _open(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            os.close(file)
            raise PermissionError(f"{self._path} is another user's")
        return file
