"""Where the launchers of a job meet now, where that is not the place that they were told: said by its ranks in the record of
their attempt, for whoever comes with the command as it was.

Pure: the environment and records go in, words come out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

#: What a launcher's command is given by the environment: the endpoint that it was told, and where it meets instead.
VARIABLE = "SPOTGUARD_RENDEZVOUS"

#: A name or an address, and perhaps a port. It becomes a word of a command, so it begins with no hyphen.
_ENDPOINT = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:_\[\]-]{0,254}", re.ASCII)


def variable(asked: str, at: str) -> str:
    return f"{asked} {at}"


def said(env: Mapping[str, str]) -> dict[str, Any]:
    """What the record of an attempt says of it; nothing where all meet at the place that they were told."""
    words = env.get(VARIABLE, "").split()
    return {"meeting": {"instead_of": words[0], "at": words[1]}} if len(words) == 2 else {}


def also_called(names: Iterable[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The names and addresses of a machine; and where our launcher meets on that one instead of where it was told, what it was
    told. For `run` its command still says so, and that is what it moves when this machine goes too."""
    known = tuple(names)
    words = env.get(VARIABLE, "").split()
    if len(words) == 2 and _host(words[1]) in {name.lower() for name in known}:
        known += (_host(words[0]),)
    return known


def _host(endpoint: str) -> str:
    return urlsplit(f"//{endpoint}").hostname or ""


def moved_to(info: Mapping[str, Any], asked: str) -> str:
    """Where a job meets whose newest record says `info`, for a launcher that was told `asked`; "" for there, as far as is
    known. Who was told another endpoint means another place."""
    meeting = info.get("meeting")
    if not isinstance(meeting, dict) or meeting.get("instead_of") != asked:
        return ""
    at = meeting.get("at")
    return at if isinstance(at, str) and at != asked and _ENDPOINT.fullmatch(at) else ""
