"""The check of the store: whether it answers, and whether this job has each right that a save and a restore need.

It uses `register`'s own probe (`hooks.checkpoint.store_probe`). Here the probe goes on after a missing right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from spotguard.hooks.checkpoint.store_probe import StoreProbe, right_to
from spotguard.providers.clock import Clock
from spotguard.providers.errors import DeniedError, FullError, NotFoundError, SpotguardError, StoreError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.http import Heard, overhearing
from spotguard.providers.stores.names import folder_of

from ..cleanup import Leftovers
from ..finding import Check, Finding, FindingState, fails, ok, parted, warning
from ..timeouts import Aside, within

#: Seconds before each retry of a transient failure.
_PAUSES = (0.1, 1.0)
#: Timeout of one request, in seconds. A store that answers needs a tenth of a second.
STEP = 15.0

_START_ONE = "two starts of the run at the same moment may count themselves the same: start one at a time"
_NETWORK = (
    "look at the network between this machine and the store: a proxy, a firewall, an endpoint without a route"
)

FOLDER = "check the directory and its file system (df, mount), or use another store"
_NO_FOLDER = "something in this path is a file: name a directory, or another store"
_NOT_OURS = "let this user read and write the directory, and enter its parents; or use another store"
_REPORT = "nothing of this machine's, most likely: report it, with this line"


@dataclass(slots=True)
class Rights:
    findings: list[Finding] = field(default_factory=list)
    #: Whether the job may put an object.
    puts: bool = False
    #: Whether the job may delete it again.
    removes: bool = False
    #: Seconds that one small put took; 0 if none succeeded.
    put_seconds: float = 0.0


def reach(store: BlobStore, clock: Clock, heard: Heard) -> Finding:
    """Send the first request to the store, which needs the credentials, the network and the bucket.

    Args:
        store: the store to reach.
        clock: times the request.
        heard: takes the headers of each answer, on another thread.
    """
    folder = store.url.startswith("file:")
    made = True

    def warm() -> None:
        nonlocal made
        if folder:
            made = _enter(store.url)
        with overhearing(heard):
            store.warm(timeout=STEP)

    began = clock.monotonic()
    try:
        within(STEP, clock, warm, "reach")
    except TimeoutError as error:
        return fails("store", f"{store.url}: {error}", _otherwise(store), url=store.url)
    except SpotguardError as error:
        found, advice = parted(error)
        return fails("store", found, advice or _otherwise(store), url=store.url)
    except Exception as error:  # noqa: BLE001 - an error inside an SDK is one more finding
        return fails("store", f"{store.url}: {type(error).__name__}: {error}", _REPORT, url=store.url)
    took = clock.monotonic() - began
    # A directory gets no request, so no time is shown. The rights below show whether it works.
    answers = f" answers in {took * 1000:.0f} ms"
    if folder:
        answers = "" if made else ": the directory is not there yet, and the first save makes it"
    return ok("store", f"{store.url}{answers}", url=store.url, seconds=round(took, 3))


def _enter(url: str) -> bool:
    """Check that the path is a directory that this user may read. Return False if it is not there: the first put makes it.

    Raises:
        StoreError: the path is not a directory, or its file system fails.
        DeniedError: this user may not read the directory.
    """
    try:
        os.scandir(folder_of(url)).close()
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise StoreError(f"{url}: {error.strerror}; {_NO_FOLDER}") from error
    except PermissionError as error:
        raise DeniedError(f"{url}: {error.strerror}; {_NOT_OURS}") from error
    except OSError as error:  # a file server that does not answer, a name that is too long
        raise StoreError(f"{url}: {error.strerror}") from error
    return True


def rights(store: BlobStore, run_id: str, litter: Leftovers, clock: Clock) -> Rights:
    """Try each right on an object of this probe's own. After a request that hangs, send no other one."""
    found = Rights()
    probe = StoreProbe(store, run_id, STEP)
    litter.note(probe.key)
    unsure: list[BaseException] = []

    def put() -> None:
        began = clock.monotonic()  # of this attempt: earlier attempts and pauses do not count
        try:
            probe.write()
        except (DeniedError, NotFoundError, FullError):  # the store has answered, and has put nothing
            raise
        except BaseException as error:
            unsure.append(error)
            raise
        found.put_seconds = clock.monotonic() - began

    def tried(check: Check, verb: str, what: Callable[[], object]) -> Finding:
        aside = Aside(partial(_patiently, what, clock, litter), check)
        litter.putting(aside)
        name = right_to(store.url, verb)
        if not aside.ended(clock, clock.monotonic() + STEP):
            found.findings.append(fails(check, f"no answer in {STEP:g} s", _otherwise(store), right=name))
            raise _StandsStill
        finding = _judged(check, name, aside, _otherwise(store))
        found.findings.append(finding)
        return finding

    with suppress(_StandsStill):
        puts = tried("put", "write", put).state is FindingState.OK
        if puts:
            _create(tried, probe, found)
            tried("get", "read", probe.read)
        else:
            # The other rights can be tried without an object: get finds none, list lists none, delete raises no error.
            tried("get", "read", probe.miss)
            if not unsure:
                litter.removed(probe.key)
        tried("list", "list", lambda: _listed(probe, puts))
        if tried("delete", "delete", lambda: probe.remove(STEP)).state is FindingState.OK:
            litter.removed(probe.key)
            found.removes = True
        found.puts = puts
    return found


def _patiently(what: Callable[[], object], clock: Clock, litter: Leftovers) -> object:
    """Retry a transient failure, as a save does: a store may answer "slow down" to any client."""
    for pause in _PAUSES:
        try:
            return what()
        except StoreError as error:
            if not error.transient or clock.wait(litter.over, pause):
                raise
    return what()


class _StandsStill(Exception):
    """The store did not answer in time, and the next request would take as long."""


def _otherwise(store: BlobStore) -> str:
    """Return the advice for an error that has none of its own."""
    return FOLDER if store.url.startswith("file:") else _NETWORK


def _judged(check: Check, name: str, asked: Aside[object], otherwise: str) -> Finding:
    """Return the finding about one right.

    Args:
        check: the check of this right.
        name: the cloud's own name of the right.
        asked: the request that has ended.
        otherwise: the advice for an error that has none of its own.
    """
    try:
        asked.value()
    except StoreError as error:
        met, advice = parted(error)
        missing = f"allow {name}" if name and isinstance(error, DeniedError) else ""
        return fails(check, met, "; ".join(filter(None, (missing, advice))) or otherwise, right=name)
    except Exception as error:  # noqa: BLE001 - as in `reach`
        return fails(check, f"{type(error).__name__}: {error}", _REPORT, right=name)
    return ok(check, name or "allowed", right=name)


def _create(
    tried: Callable[[Check, str, Callable[[], object]], Finding], probe: StoreProbe, found: Rights
) -> None:
    """Try the conditional put, by which two starts of a run get different attempt numbers."""
    instead: list[str] = []
    asked = tried("create", "write", lambda: instead.append(probe.create()))
    if any(instead):
        found.findings[-1] = warning("create", instead[-1], _START_ONE, right=asked.facts["right"])


def _listed(probe: StoreProbe, written: bool) -> None:
    probe.find(written=written)
    probe.miss()  # without the right to list, S3 answers "denied" for an object that does not exist


def remains(litter: Leftovers) -> Iterator[Finding]:
    """Yield a warning about the doctor's own objects that could not be deleted."""
    if litter.left:
        more = f" and {len(litter.left) - 1} more" if len(litter.left) > 1 else ""
        found = f"not removed: {litter.left[0]}{more} ({litter.why})"
        yield warning("remains", found, "delete it by hand", left=list(litter.left))
