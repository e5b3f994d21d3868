"""What a run may be called: one rule, because one name is an option, a socket's file and a folder in every store.

Lowest of all, so that the agent and the hooks can both ask here; neither knows the other's rooms.
"""

from __future__ import annotations

import re

#: 64: with the longest of runtime folders ("/run/user/4294967294/spotguard/") it still makes a socket's path of 107 bytes
#: (unix(7)). Not "." first, which hides a file and may be "..", nor "-", which a command takes for an option.
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

#: The rule in words, for who broke it.
RUN_ID = "up to 64 letters, digits, '.', '_' and '-', not '.' or '-' first, as in gpt-small-7"


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None
