"""What cannot be the name of a bucket, a container or a folder: refused before anybody asks for it. Loads no SDK, makes nothing.

A bucket's name is checked where the cloud itself is meant. Another service of S3's or Google's protocol (MinIO, Swift, an emulator) has rules of its own:
what may be a bucket is taken, and the service says whether that is there. Azure's protocol is spoken by Azure and its emulator alone, and both
have Azure's rules: they hold at every endpoint.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from ..errors import UsageError
from .url import CLOUDS, Location, locate, read_url

_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}", re.ASCII)
#: "General purpose bucket naming rules", S3 User Guide: what us-east-1 gave before March 2018, and all of today's names. Whatever the region that
#: is said: a machine of another may use such a bucket, and S3 says in its answer where that lies.
_S3 = re.compile(r"[A-Za-z0-9._-]{3,255}", re.ASCII)
#: "Bucket name requirements", Cloud Storage.
_GS = re.compile(r"(?=.{3,222}\Z)(?!goog)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)

#: AWS's own files, each with the variable that says where else it is.
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}

#: Azure's conventional variables. One that is empty is not set: so a template (`${VAR:-}`) leaves what nobody has given.
CONNECTION, ACCOUNT = "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT"

#: "Naming and referencing containers, blobs, and metadata", REST API reference.
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_NAME = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


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


def _check_az(at: Location, env: Mapping[str, str]) -> None:
    """A container, and an account, which the environment may say."""
    check_container(at)
    if not env.get(CONNECTION):
        account_of(at, env)


def check_container(at: Location) -> None:
    if _CONTAINER.fullmatch(at.bucket) is None:
        raise UsageError(
            f"store {at.url!r}: {at.bucket!r} is no container's name; it has 3 to 63 lower-case letters, digits and "
            "single hyphens between them"
        )


def account_of(at: Location, env: Mapping[str, str]) -> tuple[str | None, str]:
    """The account's name, where it is said, and its endpoint."""
    name = at.options.get("account") or env.get(ACCOUNT) or None
    if "endpoint" in at.options:
        return name, endpoint_of(at)
    if name is None:
        raise UsageError(
            f"store {at.url!r} says no storage account; write az://container/prefix?account=NAME, or set {ACCOUNT} or "
            f"{CONNECTION}"
        )
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"store {at.url!r}: {name!r} is no storage account's name; it has 3 to 24 lower-case letters and digits"
        )
    return name, f"https://{name}.blob.core.windows.net"


def endpoint_of(at: Location) -> str:
    """As the URL has it, which was looked at when it was read."""
    return at.options["endpoint"].rstrip("/")


def folder_of(url: str) -> Path:
    """The folder that a `file://` URL names, byte for byte: a name need not be UTF-8."""
    return Path(os.fsdecode(unquote_to_bytes(os.fsencode(urlsplit(url).path))))


def check_folder(origin: str, url: str) -> None:
    """Refuse a folder's URL that leads through a file.

    Nothing else is certain beforehand: what is missing is made, and who may write there the training process finds out, which
    may be another user.

    Raises:
        UsageError: `origin` says where it was given.
    """
    if urlsplit(url).scheme != "file":
        return
    path = folder_of(url)
    for place in (path, *path.parents):
        try:
            mode = os.stat(place).st_mode
        except OSError:  # not there, or not for us to see
            continue
        if not stat.S_ISDIR(mode):
            raise UsageError(f"{origin}: store {url!r}: {place} is a file: name a folder, or another store")
        return


# Who opens what is refused here says so too, each in its own way: an SDK after some seconds, a training process at the end of a
# traceback, and a file where a folder should be looks like a store that holds nothing.


def read_place(origin: str, text: str) -> str:
    """The URL of a store, for this machine and its environment.

    Raises:
        UsageError: it can be none; `origin` says where it was given.
    """
    check_folder(origin, read_unlooked(origin, text))
    return text


def read_unlooked(origin: str, text: str) -> str:
    """The same by its words alone, for who looks at a folder in a time of their own: its file server may be gone."""
    check_named(origin, read_url(origin, text), os.environ, here=True)
    return text
