"""What the URL of a store says. Nothing is opened, and no SDK imported.

What a store needs beyond bucket and prefix stands in the URL's query (`s3://bucket/run?region=eu-west-1`): so it goes where the
URL goes, into the agent's record, the environment of the training process and the next machine. Never a secret: those
come by each SDK's own chain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import UsageError
from .base import is_segment

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Where an URL may name a user and a password; some write their keys there, and a key may hold a slash.
_USER = re.compile(r"//(?:[^/?#\s]*:[^?#\s]*|[^/?#\s]*)@")
_EXAMPLE = "file:///mnt/checkpoints"

#: What one of the three clouds takes at least; each says the rest itself.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}", re.ASCII)
#: "Naming and referencing containers, blobs, and metadata", REST API reference, and the change feed's page: each has rules of its own.
_OF_AZURE = ("$root", "$web", "$logs", "$blobchangefeed")


@dataclass(frozen=True, slots=True)
class StoreKind:
    """What a scheme stands for."""

    name: str
    #: The place of the first part of the path: bucket or container.
    place: str
    module: str
    factory: str
    #: By which name `optional_deps` knows it, and a package that comes with it.
    extra: str
    sdk: str
    options: tuple[str, ...]


CLOUDS = {
    "s3": StoreKind(
        "S3", "bucket", ".s3.store", "S3Store", "s3", "boto3",
        ("region", "endpoint", "ca", "profile", "requester-pays", "sse", "kms-key-id"),
    ),
    "gs": StoreKind(
        "Google Cloud Storage", "bucket", ".gcs.store", "GCSStore", "gcs", "google.cloud.storage",
        ("project", "endpoint", "ca", "user-project", "kms-key-name"),
    ),
    "az": StoreKind(
        "Azure Blob Storage", "container", ".azure.store", "AzureBlobStore", "azure", "azure.storage.blob",
        ("account", "endpoint", "ca", "encryption-scope"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a cloud's store, as an URL says it."""

    url: str
    #: Bucket or container.
    bucket: str
    #: What every key is put behind: "" or "some/folder/".
    prefix: str
    options: Mapping[str, str]

    def key(self, key: str) -> str:
        """The whole name of an object in the bucket."""
        return self.prefix + key


def check_url(url: str) -> None:
    """Refuse what is no URL of a store.

    Raises:
        UsageError: with the value, and the URL that is probably meant.
    """
    if _SCHEME.match(url) is None:
        # absolute() only turns a relative path into the absolute one that an URL needs.
        scheme, colon, rest = url.partition(":")
        path = url.removeprefix("file:")
        if colon and scheme.lower() in CLOUDS:
            place = rest.strip("/")
            hint = f"{scheme.lower()}://{place or f'{CLOUDS[scheme.lower()].place}/prefix'}"
        else:
            hint = Path(path).absolute().as_uri() if path and "\0" not in path else _EXAMPLE
        raise UsageError(f"store {shown(url)!r} is not an URL; write it as {hint}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(
            f"store {shown(url)!r} is not an URL ({error}); use one such as {_EXAMPLE}"
        ) from error
    if parts.scheme in CLOUDS:
        locate(url)
        return
    if parts.scheme != "file":
        raise UsageError(
            f"store {shown(url)!r} has scheme {parts.scheme!r}, which is unknown; use s3://bucket/prefix, gs://bucket/prefix, "
            f"az://container/prefix, or {_EXAMPLE}"
        )
    if parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"store {shown(url)!r} names a host, {parts.netloc.rpartition('@')[2]!r}; a path on this machine has three slashes: "
            f"file:///{parts.netloc.rpartition('@')[2]}{parts.path}"
        )
    if parts.query or parts.fragment:
        raise UsageError(
            f"store {shown(url)!r} has a '?' or '#'; a path that holds one is written %3F or %23"
        )
    path = unquote(parts.path)
    if path in ("", "/") or "\0" in path:
        raise UsageError(f"store {shown(url)!r} names no folder; use one, such as {_EXAMPLE}")


def shown(url: str) -> str:
    """An URL to be repeated to a person: without a password that somebody has put into it."""
    return _USER.sub("//…@", url)


def inside(url: str, path: str) -> str:
    """The URL of something in the store at `url`: the path comes before the options."""
    head, mark, options = url.partition("?")
    return f"{head.rstrip('/')}/{path}{mark}{options}"


def locate(url: str) -> Location:
    """The place in a cloud that an URL names.

    Raises:
        UsageError: as `check_url`, which has seen the rest of it.
    """
    parts = urlsplit(url)
    cloud = CLOUDS[parts.scheme]
    example = f"{parts.scheme}://{cloud.place}/prefix"
    bucket = parts.netloc
    if parts.scheme == "az" and bucket in _OF_AZURE:
        raise UsageError(
            f"store {shown(url)!r}: {bucket!r} is one of Azure's own containers, which are not taken: name one of yours"
        )
    if _BUCKET.fullmatch(bucket) is None:
        raise UsageError(f"store {shown(url)!r} names no {cloud.place}; write it as {example}")
    path = unquote(parts.path).strip("/")
    if path and not all(is_segment(segment) for segment in path.split("/")):
        raise UsageError(
            f"store {shown(url)!r} has the prefix {path!r}; use letters, digits and ._@=+,- between slashes, as in {example}"
        )
    if parts.fragment:
        raise UsageError(f"store {shown(url)!r} has a '#'; write it as {example}")
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in cloud.options:
            # Without its value: a key is no option.
            raise UsageError(
                f"store {shown(url.partition('?')[0])!r} has the option {name!r}; {cloud.name} knows {', '.join(cloud.options)}"
            )
        if not value or name in options:
            raise UsageError(
                f"store {shown(url)!r}: option {name!r} needs one value, as in {example}?{name}=VALUE"
            )
        options[name] = value
    if "endpoint" in options:
        _check_endpoint(url.partition("?")[0], parts.scheme, options["endpoint"])
    return Location(url, bucket, f"{path}/" if path else "", options)


def _check_endpoint(store: str, scheme: str, said: str) -> None:
    """Refuse what no SDK could ask, before one is loaded: each of them says it in its own way, and some by a bug.

    Raises:
        UsageError: without what may be a password.
    """
    if "@" in said:
        raise UsageError(
            f"store {shown(store)!r}: its endpoint names a user; leave that out: credentials come from the environment, as "
            "the cloud's own SDK finds them"
        )
    try:
        # STORAGE_EMULATOR_HOST has no scheme, and who writes it here may copy that.
        parts = urlsplit(said if scheme != "gs" or "://" in said else f"http://{said}")
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or brackets around what is no address
        sound = False
        parts = urlsplit("")
    if not sound or parts.query or parts.fragment or any(each <= " " for each in said):
        example = "https://NAME.blob.core.windows.net" if scheme == "az" else "https://storage.example:9000"
        raise UsageError(
            f"store {shown(store)!r}: endpoint={said.partition('?')[0]!r} is no endpoint; write it as {example}"
        )


def read_url(origin: str, text: str) -> str:
    """An option's value as a store's URL.

    Raises:
        UsageError: it is none; `origin` says where it was given.
    """
    try:
        check_url(text)
    except UsageError as error:
        raise UsageError(f"{origin}: {error}") from error
    return text
