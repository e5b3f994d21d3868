"""Redaction of a refused command-line word, for the error that repeats it. Logs and bystanders see the error.

A user who forgets a `--` or a flag may have written a secret in its place: a variable with a key in it, an URL with a
password, a SAS.
"""

from __future__ import annotations

import re

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.url import CLOUDS, check_url

#: A name and the sign before its value: `NAME=`, or the colon of a header, which is quoted as one word with a blank in it.
_GIVEN = re.compile(r"[\w.-]+(?:=|:(?=\S*\s))")
#: The user and password of a URL. They end at the last @, because a password may contain any character.
_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)?.+@", re.DOTALL)
#: Signs that a value follows.
_VALUE = re.compile(r"[=?#&;]|:(?=\s)")
#: Scheme and host of a URL: the only part of a webhook's URL that is no secret.
_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]+/")


def names_a_store(word: str) -> bool:
    """Return whether the word has the form of a store's URL. The URL may be invalid otherwise."""
    scheme, mark, _ = word.partition("://")
    return bool(mark) and scheme.lower() in (*CLOUDS, "file")


def repeated(word: str) -> str:
    """Return the word without the parts that may be secret. A store's URL that is valid holds no secret."""
    # Imported here, so that only a run or an agent that refuses a word loads it.
    from spotguard.providers.redaction import looks_secret

    if _is_a_store(word):
        return word
    match = _GIVEN.match(word)
    if match is None:
        word = _USER.sub(r"\1…@", word)
        match = _VALUE.search(word)
    kept = word if match is None else word[: match.end()]
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
