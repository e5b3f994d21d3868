"""Checks of the names of buckets, containers and directories, before any request. They load no SDK, and make nothing.

A bucket's name is checked only if the URL means the cloud itself. Another service with S3's or Google's protocol (MinIO,
Swift, an emulator) has rules of its own. There the check accepts any possible bucket name, and the service tells whether
the bucket exists. Only Azure and its emulator speak Azure's protocol, and both have Azure's rules: those hold at every endpoint.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from ..errors import UsageError
from ..text import store_url
from .url import CLOUDS, Location, locate, read_url, scheme_of

_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}", re.ASCII)
#: "General purpose bucket naming rules", S3 User Guide: the names that us-east-1 gave before March 2018, and all of today's.
#: The configured region does not matter: a machine in another region may use such a bucket, and S3's answer tells where it is.
_S3 = re.compile(r"[A-Za-z0-9._-]{3,255}", re.ASCII)
#: "Bucket name requirements", Cloud Storage.
_GS = re.compile(r"(?=.{3,222}\Z)(?!goog)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)

#: AWS's own files, by the variable that can name another path.
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}

#: Azure's conventional variables. An empty one counts as not set, so that a template (`${VAR:-}`) can leave it empty.
CONNECTION, ACCOUNT = "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT"

#: "Naming and referencing containers, blobs, and metadata", REST API reference.
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_NAME = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


def check_named(origin: str, url: str, env: Mapping[str, str], *, here: bool = False) -> None:
    """Refuse a URL that names no valid place in its cloud, together with the environment's values.

    This runs before training begins, in a process without the SDK. An error in the training process would stand at the
    end of a traceback.

    Args:
        origin: the option or file that holds the URL, for the message.
        url: the store's URL.
        env: the environment of the machine that will open the store.
        here: whether that is this machine. Then its files count too.

    Raises:
        UsageError: the URL names no valid place; the message begins with `origin`.
    """
    scheme = scheme_of(url)
    if scheme not in CLOUDS:
        return
    at = locate(url)
    try:
        if scheme == "az":
            _check_az(at, env)
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
    # Only now read the disk. Only botocore knows which endpoint the files name, and for which profile.
    if here and "endpoint_url" in _own_files(env):
        return
    raise UsageError(
        f"store {at.url!r}: {at.bucket!r} is no name that S3 gives a bucket: it has 3 characters or more, and is no IP address (for another "
        "service add its ?endpoint=) [SG308]"
    )


def _own_files(env: Mapping[str, str]) -> str:
    """Return the content of AWS's own files on this machine, found as botocore finds them."""
    contents: list[str] = []
    for variable, usual in _FILES.items():
        # Not Path.expanduser, which raises if there is no such user.
        path = Path(os.path.expanduser(os.path.expandvars(env.get(variable, usual))))
        try:
            contents.append(path.read_text(errors="replace"))
        except OSError:  # if the file is needed, botocore reports the error
            continue
    return "\n".join(contents)


def _check_gs(at: Location, env: Mapping[str, str]) -> None:
    # A name has a letter or a digit at both ends.
    ends = at.bucket[0].isalnum() and at.bucket[-1].isalnum()
    if _GS.fullmatch(at.bucket) and ends and not _ADDRESS.fullmatch(at.bucket):
        return
    if "endpoint" in at.options or env.get("STORAGE_EMULATOR_HOST"):
        return
    raise UsageError(
        f"store {at.url!r}: {at.bucket!r} is no name that Google Cloud Storage gives a bucket: 3 to 63 lower-case letters, digits, hyphens and "
        "underscores, or several of that with dots between them, a letter or a digit first and last, not goog first, and no IP address [SG308]"
    )


def _check_az(at: Location, env: Mapping[str, str]) -> None:
    """Check the container, and the account, which the environment may name."""
    check_container(at)
    if not env.get(CONNECTION):
        account_of(at, env)


def check_container(at: Location) -> None:
    if _CONTAINER.fullmatch(at.bucket) is None:
        raise UsageError(
            f"store {at.url!r}: {at.bucket!r} is no container's name; it has 3 to 63 lower-case letters, digits and "
            "single hyphens between them [SG308]"
        )


def account_of(at: Location, env: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the account's name, if it is given, and its endpoint."""
    name = at.options.get("account") or env.get(ACCOUNT) or None
    if "endpoint" in at.options:
        return name, endpoint_of(at)
    if name is None:
        raise UsageError(
            f"store {at.url!r} names no storage account; write az://container/prefix?account=NAME, or set {ACCOUNT} or "
            f"{CONNECTION} [SG308]"
        )
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"store {at.url!r}: {name!r} is no storage account's name; it has 3 to 24 lower-case letters and digits [SG308]"
        )
    return name, f"https://{name}.blob.core.windows.net"


def endpoint_of(at: Location) -> str:
    """Return the endpoint in the URL, which was checked when the URL was parsed."""
    return at.options["endpoint"].rstrip("/")


def folder_of(url: str) -> Path:
    """Return the directory that a `file://` URL names, byte for byte: a name need not be UTF-8."""
    return Path(os.fsdecode(unquote_to_bytes(os.fsencode(urlsplit(url).path))))


def check_folder(origin: str, url: str) -> None:
    """Refuse a directory's URL whose path leads through a file.

    Nothing else is certain in advance. A missing directory is made, and only the training process learns whether it may write
    there, since it may run as another user.

    Raises:
        UsageError: the path leads through a file; the message begins with `origin`.
    """
    if scheme_of(url) != "file":
        return
    path = folder_of(url)
    for place in (path, *path.parents):
        try:
            mode = os.stat(place).st_mode
        except OSError:  # missing, or not visible to this user
            continue
        if not stat.S_ISDIR(mode):
            raise UsageError(
                f"{origin}: store {url!r}: {place} is a file: name a directory, or another store [SG308]"
            )
        return


# The code that opens a store reports the same mistakes, but later and less clearly: an SDK after some seconds, a training
# process at the end of a traceback. A file in place of a directory would look like an empty store.


def read_place(origin: str, text: str) -> str:
    """Return the URL of a store, checked for this machine and its environment.

    Raises:
        UsageError: the URL cannot be a store's; the message begins with `origin`.
    """
    url = read_unlooked(origin, text)
    check_folder(origin, url)
    return url


def read_unlooked(origin: str, text: str) -> str:
    """Return the URL, checked without access to its directory.

    For callers that check the directory within a time limit of their own, because its file server may be gone.
    """
    url = store_url(text)
    check_named(origin, read_url(origin, url), os.environ, here=True)
    return url
