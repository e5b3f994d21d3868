"""Opens the store of a URL, by its scheme. An SDK is imported only when a URL asks for it."""

from __future__ import annotations

import importlib
from urllib.parse import urlsplit

from ..errors import UsageError
from ..optional_deps import how_to_install
from .base import BlobStore
from .url import CLOUDS, check_url, locate


def open_store(url: str) -> BlobStore:
    """Return the store at `url`. Opening sends nothing: the first put makes a directory, and `warm` sends the first request.

    Raises:
        UsageError: `check_url` refuses the URL, or the store's SDK is not installed.
    """
    check_url(url)
    parts = urlsplit(url)
    if (cloud := CLOUDS.get(parts.scheme)) is None:
        from .file import FileStore
        from .names import folder_of

        return FileStore(folder_of(url), url)
    try:
        module = importlib.import_module(cloud.module, __package__)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"store {url!r} needs {cloud.sdk}, which is not installed here ({error}): "
            f"{how_to_install(cloud.extra)} [SG307]"
        ) from error
    store: BlobStore = getattr(module, cloud.factory)(locate(url))
    return store
