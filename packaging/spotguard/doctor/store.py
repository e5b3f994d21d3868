"""Whether the store answers, and lets this job do what a save and a restore need: each right tried, each a line.

It is `register`'s own probe (`hooks.checkpoints.probe`), which goes on here where a right is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from spotguard.hooks.checkpoints.probe import Probe, right_to
from spotguard.providers.clock import Clock
from spotguard.providers.errors import DeniedError, SpotguardError, StoreError
from spotguard.providers.stores.store import BlobStore
from spotguard.providers.stores.transport import Heard, overhearing

from .asides import Aside, within
from .findings import Check, Finding, fails, ok, parted, warning
from .litter import Litter

#: Seconds for one request: what answers does so in a tenth of one, and what stands still is found by then.
STEP = 15.0

_START_ONE = "two starts of the run at the same moment may count themselves the same: start one at a time"
_NETWORK = (
    "look at the network between this machine and the store: a proxy, a firewall, an endpoint without a route"
)


@dataclass(slots=True)
class Rights:
    findings: list[Finding] = field(default_factory=list)
    #: Whether something may be put, and be removed again.
    puts: bool = False
    removes: bool = False
    #: Seconds that one small object took.
    put_seconds: float = 0.0


def reach(store: BlobStore, clock: Clock, heard: Heard) -> Finding:
    """The first request of all: credentials, the network, the bucket.

    Args:
        heard: told the headers of what is answered, on another thread.
    """

    def warm() -> None:
        with overhearing(heard):
            store.warm(timeout=STEP)

    began = clock.monotonic()
    try:
        within(STEP, clock, warm, "reach")
    except TimeoutError as error:
        return fails("store", f"{store.url}: {error}", _NETWORK, url=store.url)
    except SpotguardError as error:
        found, advice = parted(error)
        return fails("store", found, advice or _NETWORK, url=store.url)
    took = clock.monotonic() - began
    # A folder is not asked: the rights below show what it does.
    answers = "" if store.url.startswith("file:") else f" answers in {took * 1000:.0f} ms"
    return ok("store", f"{store.url}{answers}", url=store.url, seconds=round(took, 3))


def rights(store: BlobStore, run_id: str, litter: Litter, clock: Clock) -> Rights:
    """Try each right on an object that no other probe has."""
    found = Rights()
    probe = Probe(store, run_id, STEP)
    litter.note(probe.key)

    def tried(check: Check, verb: str, what: Callable[[], object]) -> bool:
        finding = _tried(store, check, verb, what, litter, clock)
        found.findings.append(finding)
        return finding.state == "ok"

    began = clock.monotonic()
    found.puts = tried("put", "write", probe.write)
    found.put_seconds = clock.monotonic() - began
    if found.puts:
        found.findings.append(_created(store, probe, litter, clock))
        tried("get", "read", probe.read)
    else:
        # Not refused by what was put: the rights to read what is not there, to list nothing, to delete nothing.
        tried("get", "read", probe.miss)
    tried("list", "list", lambda: _listed(probe, found.puts))
    found.removes = tried("delete", "delete", lambda: probe.remove(STEP))
    if found.removes:
        litter.removed(probe.key)
    return found


def _tried(
    store: BlobStore, check: Check, verb: str, what: Callable[[], object], litter: Litter, clock: Clock
) -> Finding:
    name = right_to(store.url, verb)
    aside = Aside(what, check)
    litter.putting(aside)
    if not aside.ended(clock, clock.monotonic() + STEP):
        return fails(check, f"no answer in {STEP:g} s", _NETWORK, right=name)
    try:
        aside.value()
    except StoreError as error:
        met, advice = parted(error)
        missing = f"allow {name}" if name and isinstance(error, DeniedError) else ""
        return fails(check, met, "; ".join(filter(None, (missing, advice))) or _NETWORK, right=name)
    return ok(check, name or "allowed", right=name)


def _listed(probe: Probe, written: bool) -> None:
    probe.find(written=written)
    probe.miss()  # S3 says of what is not there that it may not be read, to who may not list


def _created(store: BlobStore, probe: Probe, litter: Litter, clock: Clock) -> Finding:
    """The conditional put: by it two starts of a run get different numbers."""
    refused: list[bool] = []
    tried = _tried(store, "create", "write", lambda: refused.append(probe.create()), litter, clock)
    if refused == [False]:
        words = "a put on condition that nothing is there replaces what is there"
        return warning("create", words, _START_ONE, right=tried.facts["right"])
    return tried


def remains(litter: Litter) -> Iterator[Finding]:
    """What of ours could not be removed."""
    if litter.left:
        more = f" and {len(litter.left) - 1} more" if len(litter.left) > 1 else ""
        found = f"not removed: {litter.left[0]}{more} ({litter.why})"
        yield warning("remains", found, "delete it by hand", left=list(litter.left))
