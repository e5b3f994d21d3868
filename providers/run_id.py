"""The rule for the name of a run: the name is an option, a socket's file and a directory in every store.

This module is in the lowest room, so that the agent and the hooks can both use it; neither knows the other's rooms.
"""

from __future__ import annotations

import re

#: The limit of 64 keeps a socket's path within 107 bytes (unix(7)), even in the longest runtime directory
#: ("/run/user/4294967294/spotguard/"). A leading "." would hide a file or make ".."; a leading "-" would look like an
#: option.
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

#: The rule in words, for error messages.
RUN_ID = "up to 64 letters, digits, '.', '_' and '-', not '.' or '-' first, as in gpt-small-7"


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None
