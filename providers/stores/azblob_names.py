"""What an Azure store is called, by its URL and Azure's conventional variables: container, account, endpoint. Loads no SDK.

A variable that is empty is not set: so a template (`${VAR:-}`) leaves what nobody has given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import UsageError
from .urls import Location

CONNECTION, ACCOUNT = "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT"

#: "Naming and referencing containers, blobs, and metadata", REST API reference.
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_NAME = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


def check_named(at: Location, env: Mapping[str, str]) -> None:
    """Refuse what names no container, or no account even with what the environment says."""
    check_container(at)
    if not env.get(CONNECTION):
        account_of(at, env)


def check_container(at: Location) -> None:
    if _CONTAINER.fullmatch(at.bucket) is None:
        raise UsageError(
            f"store {at.url!r}: {at.bucket!r} is no container's name; it has 3 to 63 lower-case letters, digits and "
            "single hyphens between them"
        )


def account_of(at: Location, env: Mapping[str, str]) -> tuple[str | None, str]:
    """The account's name, where it is said, and its endpoint."""
    name = at.options.get("account") or env.get(ACCOUNT) or None
    if "endpoint" in at.options:
        return name, endpoint_of(at)
    if name is None:
        raise UsageError(
            f"store {at.url!r} says no storage account; write az://container/prefix?account=NAME, or set {ACCOUNT} or "
            f"{CONNECTION}"
        )
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"store {at.url!r}: {name!r} is no storage account's name; it has 3 to 24 lower-case letters and digits"
        )
    return name, f"https://{name}.blob.core.windows.net"


def endpoint_of(at: Location) -> str:
    """As the URL has it, which was looked at when it was read."""
    return at.options["endpoint"].rstrip("/")
