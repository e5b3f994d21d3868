"""From an URL to its store, by the scheme. An SDK is imported when an URL asks for it, never before."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import UsageError
from .store import BlobStore

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

#: Schemes of stores that have a place in the design and no code yet.
_LATER = {"s3": "S3", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
_EXAMPLE = "file:///mnt/checkpoints"


def open_store(url: str) -> BlobStore:
    """The store at `url`. Opening a folder touches nothing: it is made by the first put.

    Raises:
        UsageError: `check_url` says why.
    """
    check_url(url)
    from .localfs import FileStore

    return FileStore(unquote(urlsplit(url).path), url)


def check_url(url: str) -> None:
    """Refuse what is no URL of a store of this version.

    Raises:
        UsageError: with the value, and the URL that is probably meant.
    """
    if _SCHEME.match(url) is None:
        # absolute() only turns a relative path into the absolute one that an URL needs.
        path = url.removeprefix("file:")
        hint = Path(path).absolute().as_uri() if path and "\0" not in path else _EXAMPLE
        raise UsageError(f"store {url!r} is not an URL; write it as {hint}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"store {url!r} is not an URL ({error}); use one such as {_EXAMPLE}") from error
    if parts.scheme in _LATER:
        raise UsageError(
            f"store {url!r}: {_LATER[parts.scheme]} is not in this version; file:///path works, such as {_EXAMPLE}"
        )
    if parts.scheme != "file":
        raise UsageError(
            f"store {url!r} has scheme {parts.scheme!r}, which is unknown; use file:///path, such as {_EXAMPLE}"
        )
    if parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"store {url!r} names a host, {parts.netloc!r}; a path on this machine has three slashes: "
            f"file:///{parts.netloc}{parts.path}"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"store {url!r} has a '?' or '#'; a path that holds one is written %3F or %23")
    path = unquote(parts.path)
    if path in ("", "/") or "\0" in path:
        raise UsageError(f"store {url!r} names no folder; use one, such as {_EXAMPLE}")
