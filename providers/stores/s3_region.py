"""In which region a bucket is looked for, and what AWS's own files may say of it. Loads no SDK: those who have none ask as well."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .urls import Location

#: Where nobody says one: it answers for all of them, and says which one it should have been.
USUAL = "us-east-1"

#: What botocore asks before a profile's region. AWS's other SDKs ask AWS_REGION, which botocore does not know.
FIRST = "AWS_DEFAULT_REGION"

#: AWS's own files, each with the variable that says where else it is.
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}


def region_of(at: Location, env: Mapping[str, str], found: str | None) -> str:
    """
    Args:
        found: what botocore has found: in `FIRST`, else in the profile.
    """
    return at.options.get("region") or found or env.get("AWS_REGION") or USUAL


def may_be_usual(at: Location, env: Mapping[str, str], files: str) -> bool:
    """Whether the bucket may be looked for in `USUAL`, by who has not read the profile.

    Args:
        files: what AWS's own files hold. Which profile counts is botocore's to say, so that any region in them may be it.
    """
    if "region" not in at.options and FIRST not in env and "region" in files:
        return True
    return region_of(at, env, env.get(FIRST)) == USUAL


def own_files(env: Mapping[str, str]) -> str:
    """What AWS's own files on this machine hold, found as botocore finds them."""
    held: list[str] = []
    for variable, usual in _FILES.items():
        # Not Path.expanduser, which raises where there is no such user.
        path = Path(os.path.expanduser(os.path.expandvars(env.get(variable, usual))))
        try:
            held.append(path.read_text(errors="replace"))
        except OSError:  # botocore will say so, to who needs it
            continue
    return "\n".join(held)
