"""A word that is refused, as it may be said again: an error goes into logs, and to who looks on.

Who forgets a `--` or a flag has written what belongs elsewhere: a variable with a key in it, an URL with a password, a SAS.
"""

from __future__ import annotations

import re

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.url import CLOUDS, check_url

#: A name, and what it is given: also a header's, which is quoted with a blank in it.
_GIVEN = re.compile(r"[\w.-]+(?:=|:(?=\S*\s))")
#: Of whom: up to the last @, for a password may hold anything.
_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)?.+@", re.DOTALL)
#: Behind these, a value.
_VALUE = re.compile(r"[=?#&;]|:(?=\s)")
#: Of a webhook's URL, the part that is known to all.
_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]+/")


def names_a_store(word: str) -> bool:
    """By its looks: it may be wrong otherwise."""
    scheme, mark, _ = word.partition("://")
    return bool(mark) and scheme.lower() in (*CLOUDS, "file")


def repeated(word: str) -> str:
    """The word without what may be a secret. A store's URL that could be used holds none."""
    # Here, for it is loaded by no run or agent that is not refused.
    from spotguard.providers.redaction import looks_secret

    if _is_a_store(word):
        return word
    found = _GIVEN.match(word)
    if found is None:
        word = _USER.sub(r"\1…@", word)
        found = _VALUE.search(word)
    kept = word if found is None else word[: found.end()]
    if looks_secret(kept):
        host = _HOST.match(kept)
        kept = "" if host is None else host[0]
    return kept if kept == word else f"{kept}…"


def _is_a_store(word: str) -> bool:
    if "://" not in word:
        return False
    try:
        check_url(word)
    except UsageError:
        return False
    return True
