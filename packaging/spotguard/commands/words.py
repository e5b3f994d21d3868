"""A word that is refused, as it may be said again: an error goes into logs, and to who looks on.

Who forgets a `--` or a flag has written what belongs elsewhere: a variable with a key in it, an URL with a password, a SAS.
"""

from __future__ import annotations

import re

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.urls import CLOUDS, check_url

#: Up to the last @, for a password may hold anything.
_USER = re.compile(r"://.*@", re.DOTALL)
#: Behind these, a value.
_VALUE = re.compile(r"[=?#&;]")


def names_a_store(word: str) -> bool:
    """By its looks: it may be wrong otherwise."""
    scheme, mark, _ = word.partition("://")
    return bool(mark) and scheme.lower() in (*CLOUDS, "file")


def repeated(word: str) -> str:
    """The word without what may be a secret. A store's URL that could be used holds none."""
    if "://" in word:
        try:
            check_url(word)
        except UsageError:
            word = _USER.sub("://…@", word)
        else:
            return word
    found = _VALUE.search(word)
    return word if found is None else word[: found.end()] + "…"
