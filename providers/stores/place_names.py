"""What a cloud cannot have called a bucket: refused before anybody asks for it. Loads no SDK.

Only where the cloud itself is meant. Another service of S3's or Google's protocol (MinIO, Swift, an emulator) has rules of its own: what may be a
bucket is taken, and it says whether that is there. Azure's protocol is spoken by Azure and its emulator alone, and both have Azure's rules: they
hold at every endpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import UsageError
from . import azblob_names
from .urls import CLOUDS, Location, locate

_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}", re.ASCII)
#: "General purpose bucket naming rules", S3 User Guide: what us-east-1 gave before March 2018, and all of today's names. Whatever the region that
#: is said: a machine of another may use such a bucket, and S3 says in its answer where that lies.
_S3 = re.compile(r"[A-Za-z0-9._-]{3,255}", re.ASCII)
#: "Bucket name requirements", Cloud Storage.
_GS = re.compile(r"(?=.{3,222}\Z)(?!goog)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)

#: AWS's own files, each with the variable that says where else it is.
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}


def check_named(origin: str, url: str, env: Mapping[str, str], *, here: bool = False) -> None:
    """Refuse an URL that names no place of its cloud, also with what the environment says.

    Before training begins, and by who has no SDK: what the training process says is the end of a traceback.

    Args:
        env: of the machine that will open the store.
        here: it is this machine, whose files count too.

    Raises:
        UsageError: `origin` says where it was given.
    """
    scheme = urlsplit(url).scheme
    if scheme not in CLOUDS:
        return
    at = locate(url)
    try:
        if scheme == "az":
            azblob_names.check_named(at, env)
        elif scheme == "s3":
            _check_s3(at, env, here)
        else:
            _check_gs(at, env)
    except UsageError as error:
        raise UsageError(f"{origin}: {error}") from error


def _check_s3(at: Location, env: Mapping[str, str], here: bool) -> None:
    if _S3.fullmatch(at.bucket) and not _ADDRESS.fullmatch(at.bucket):
        return
    if "endpoint" in at.options or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL"):
        return
    # Only now is a disk asked. Which endpoint the files name, and for which profile, is botocore's to read.
    if here and "endpoint_url" in _own_files(env):
        return
    raise UsageError(
        f"store {at.url!r}: {at.bucket!r} is no name that S3 gives a bucket: it has 3 characters or more, and is no IP address (for another "
        "service add its ?endpoint=)"
    )


def _own_files(env: Mapping[str, str]) -> str:
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


def _check_gs(at: Location, env: Mapping[str, str]) -> None:
    # A letter or a digit at both ends.
    ends = at.bucket[0].isalnum() and at.bucket[-1].isalnum()
    if _GS.fullmatch(at.bucket) and ends and not _ADDRESS.fullmatch(at.bucket):
        return
    if "endpoint" in at.options or env.get("STORAGE_EMULATOR_HOST"):
        return
    raise UsageError(
        f"store {at.url!r}: {at.bucket!r} is no name that Google Cloud Storage gives a bucket: 3 to 63 lower-case letters, digits, hyphens and "
        "underscores, or several of that with dots between them, a letter or a digit first and last, not goog first, and no IP address"
    )
