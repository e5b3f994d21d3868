"""Whether the store answers, and lets this job do what a save and a restore need: each right tried, each a line.

It is `register`'s own probe (`hooks.checkpoint.store_probe`), which goes on here where a right is missing.
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

#: Seconds before what failed for now is asked again.
_PAUSES = (0.1, 1.0)
#: Seconds for one request: what answers does so in a tenth of one, and what stands still is found by then.
STEP = 15.0

_START_ONE = "two starts of the run at the same moment may count themselves the same: start one at a time"
_NETWORK = (
    "look at the network between this machine and the store: a proxy, a firewall, an endpoint without a route"
)

FOLDER = "look at the folder and its file system (df, mount), or use another store"
_NO_FOLDER = "something in this path is a file: name a folder, or another store"
_NOT_OURS = "let this user read and write the folder, and enter those above it; or use another store"
_REPORT = "nothing of this machine's, most likely: report it, with this line"


@dataclass(slots=True)
class Rights:
    findings: list[Finding] = field(default_factory=list)
    #: Whether something may be put, and be removed again.
    puts: bool = False
    removes: bool = False
    #: Seconds that one small object took; 0 where none was put.
    put_seconds: float = 0.0


def reach(store: BlobStore, clock: Clock, heard: Heard) -> Finding:
    """The first request of all: credentials, the network, the bucket.

    Args:
        heard: told the headers of what is answered, on another thread.
    """
    folder = store.url.startswith("file:")

    def warm() -> None:
        if folder:
            _enter(store.url)
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
    except Exception as error:  # noqa: BLE001 - an SDK's own mistake is one more thing that is found here
        return fails("store", f"{store.url}: {type(error).__name__}: {error}", _REPORT, url=store.url)
    took = clock.monotonic() - began
    # A folder is not asked: the rights below show what it does.
    answers = "" if folder else f" answers in {took * 1000:.0f} ms"
    return ok("store", f"{store.url}{answers}", url=store.url, seconds=round(took, 3))


def _enter(url: str) -> None:
    """Whether what lies there is a folder that may be read; one that is not there yet is made by the first put."""
    try:
        os.scandir(folder_of(url)).close()
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise StoreError(f"{url}: {error.strerror}; {_NO_FOLDER}") from error
    except PermissionError as error:
        raise DeniedError(f"{url}: {error.strerror}; {_NOT_OURS}") from error
    except OSError as error:  # a file server that is gone, a name that is too long
        raise StoreError(f"{url}: {error.strerror}") from error


def rights(store: BlobStore, run_id: str, litter: Leftovers, clock: Clock) -> Rights:
    """Try each right on an object that no other probe has. A store that stands still is asked nothing more."""
    found = Rights()
    probe = StoreProbe(store, run_id, STEP)
    litter.note(probe.key)
    unsure: list[BaseException] = []

    def put() -> None:
        began = clock.monotonic()  # of the one that succeeds: what comes before a pause is no put's time
        try:
            probe.write()
        except (DeniedError, NotFoundError, FullError):  # nothing was put: that is an answer
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
            # What was not put may all the same be read (and not found), listed (nothing) and deleted (no error).
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
    """What fails for now is asked again, as a save does: a store may say "slow down" to anybody."""
    for pause in _PAUSES:
        try:
            return what()
        except StoreError as error:
            if not error.transient or clock.wait(litter.over, pause):
                raise
    return what()


class _StandsStill(Exception):
    """It did not answer: whatever it is asked next would take as long."""


def _otherwise(store: BlobStore) -> str:
    """What to do where the error itself says nothing."""
    return FOLDER if store.url.startswith("file:") else _NETWORK


def _judged(check: Check, name: str, asked: Aside[object], otherwise: str) -> Finding:
    """
    Args:
        name: the cloud's own, of the right.
        otherwise: what to do where the error itself says nothing.
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
    """The conditional put: by it two starts of a run get different numbers."""
    refused: list[bool] = []
    asked = tried("create", "write", lambda: refused.append(probe.create()))
    if refused == [False]:
        words = "a put on condition that nothing is there replaces what is there"
        found.findings[-1] = warning("create", words, _START_ONE, right=asked.facts["right"])


def _listed(probe: StoreProbe, written: bool) -> None:
    probe.find(written=written)
    probe.miss()  # S3 says of what is not there that it may not be read, to who may not list


def remains(litter: Leftovers) -> Iterator[Finding]:
    """What of ours could not be removed."""
    if litter.left:
        more = f" and {len(litter.left) - 1} more" if len(litter.left) > 1 else ""
        found = f"not removed: {litter.left[0]}{more} ({litter.why})"
        yield warning("remains", found, "delete it by hand", left=list(litter.left))
