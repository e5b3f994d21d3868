"""A store that a person has named: what no store can be is refused before anything is started, and before one is opened.

Who opens what is refused here says so too, each in its own way: an SDK after some seconds, a training process at the end of a traceback, and a
file where a folder should be looks like a store that holds nothing.
"""

from __future__ import annotations

import os

from spotguard.providers.stores.names import check_folder, check_named
from spotguard.providers.stores.url import read_url


def read_place(origin: str, text: str) -> str:
    """The URL of a store, for this machine and its environment.

    Raises:
        UsageError: it can be none; `origin` says where it was given.
    """
    check_folder(origin, read_unlooked(origin, text))
    return text


def read_unlooked(origin: str, text: str) -> str:
    """The same by its words alone, for who looks at a folder in a time of their own: its file server may be gone."""
    check_named(origin, read_url(origin, text), os.environ, here=True)
    return text
