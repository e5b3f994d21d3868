"""What a cloud cannot have called a bucket: refused before anybody asks for it. Loads no SDK.

Only where the cloud itself is meant. Another service of S3's or Google's protocol (MinIO, Swift, an emulator) has rules of its own, and so had
S3 once: what may be a bucket is taken, and the cloud says whether it is there. Azure's protocol is spoken by Azure and its emulator alone,
and both have Azure's rules: they hold at every endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from ..errors import UsageError
from . import azblob_names, s3_region
from .urls import CLOUDS, Location, locate

_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}", re.ASCII)
#: "General purpose bucket naming rules", S3 User Guide. (What it reserves for aliases and directory buckets is there to be read and written.)
_S3 = re.compile(r"(?=.{3,63}\Z)[a-z0-9-]+(\.[a-z0-9-]+)*", re.ASCII)
#: The same page: what us-east-1 gave before March 2018.
_S3_ONCE = re.compile(r"[A-Za-z0-9._-]{3,255}", re.ASCII)
#: "Bucket name requirements", Cloud Storage.
_GS = re.compile(r"(?=.{3,222}\Z)(?!goog)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)


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
            _check_s3(at, env, s3_region.own_files(env) if here else "")
        else:
            _check_gs(at, env)
    except UsageError as error:
        raise UsageError(f"{origin}: {error}") from error


def _check_s3(at: Location, env: Mapping[str, str], files: str) -> None:
    """
    Args:
        files: what AWS's own hold. Which endpoint they name, and for which profile, is botocore's to read.
    """
    if _is_one(_S3, at.bucket) or "endpoint" in at.options or "endpoint_url" in files:
        return
    if env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL"):
        return
    once = _S3_ONCE.fullmatch(at.bucket) and not _ADDRESS.fullmatch(at.bucket)
    if once and s3_region.may_be_usual(at, env, files):
        return
    raise UsageError(
        f"store {at.url!r}: {at.bucket!r} is no name that S3 gives a bucket: 3 to 63 lower-case letters, digits, hyphens and single dots, a "
        "letter or a digit first and last, and no IP address (for one of before 2018 add ?region=us-east-1, for another service its ?endpoint=)"
    )


def _check_gs(at: Location, env: Mapping[str, str]) -> None:
    if _is_one(_GS, at.bucket) or "endpoint" in at.options or env.get("STORAGE_EMULATOR_HOST"):
        return
    raise UsageError(
        f"store {at.url!r}: {at.bucket!r} is no name that Google Cloud Storage gives a bucket: 3 to 63 lower-case letters, digits, hyphens and "
        "underscores, or several of that with dots between them, a letter or a digit first and last, not goog first, and no IP address"
    )


def _is_one(rule: re.Pattern[str], name: str) -> bool:
    """Of the rule, and of what both clouds say: a letter or a digit at both ends, and no IP address."""
    ends = name[0].isalnum() and name[-1].isalnum()
    return rule.fullmatch(name) is not None and ends and _ADDRESS.fullmatch(name) is None
