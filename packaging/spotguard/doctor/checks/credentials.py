"""The check of the store's credentials: whose they are, and how long they last. The last save may be hours away."""

from __future__ import annotations

from typing import Any

from spotguard.providers.stores.base import BlobStore, Identified
from spotguard.providers.text import ago

from ..finding import Finding, fails, ok, warning

#: Seconds for which credentials should last if they cannot be renewed.
_DAY = 24 * 3600.0

_RENEW = "what holds them cannot renew them: give the machine a role or an identity, or credentials that outlive the job"


def look(store: BlobStore) -> Finding:
    """Return the finding about the store's credentials. Called after the store was reached."""
    if not isinstance(store, Identified):
        return ok("credentials", "a directory needs none", left_seconds=None, renewed=None)
    found = store.credentials()
    if found is None:
        return ok("credentials", "none: this store is asked as nobody", left_seconds=None, renewed=None)
    left = None if found.left is None else round(found.left, 1)
    facts: dict[str, Any] = {"kind": found.kind, "left_seconds": left, "renewed": found.renewed}
    if found.renewed:
        until = "" if found.left is None else f", for {ago(max(0.0, found.left))}"
        return ok("credentials", f"{found.kind}{until}; renewed ahead of their end", **facts)
    if found.left is None:
        if found.temporary:
            words = f"{found.kind}: temporary, and their end is not known"
            return warning("credentials", words, _RENEW, **facts)
        return ok("credentials", f"{found.kind}, without an end", **facts)
    if found.left <= 0:
        return fails("credentials", f"{found.kind}: ended {ago(-found.left)} ago", _RENEW, **facts)
    words = f"{found.kind}: for {ago(found.left)}"
    return (
        warning("credentials", words, _RENEW, **facts)
        if found.left < _DAY
        else ok("credentials", words, **facts)
    )
