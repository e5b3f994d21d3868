"""Where no folder can be: refused before training begins. Looks at this machine, makes nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from ..errors import UsageError


def folder_of(url: str) -> Path:
    """The folder that a `file://` URL names, byte for byte: a name need not be UTF-8."""
    return Path(os.fsdecode(unquote_to_bytes(os.fsencode(urlsplit(url).path))))


def check_folder(origin: str, url: str) -> None:
    """Refuse a folder's URL that leads through a file.

    Nothing else is certain beforehand: what is missing is made, and who may write there the training process finds out, which
    may be another user.

    Raises:
        UsageError: `origin` says where it was given.
    """
    if urlsplit(url).scheme != "file":
        return
    path = folder_of(url)
    for place in (path, *path.parents):
        try:
            mode = os.stat(place).st_mode
        except OSError:  # not there, or not for us to see
            continue
        if not stat.S_ISDIR(mode):
            raise UsageError(f"{origin}: store {url!r}: {place} is a file: name a folder, or another store")
        return
