"""The URL of a store, parsed and checked. This module opens nothing, and imports no SDK.

A store's options beyond bucket and prefix stand in the URL's query (`s3://bucket/run?region=eu-west-1`). So they go where the
URL goes: into the agent's record, the environment of the training process and the next machine. A URL never holds a
secret: secrets come from each SDK's own chain.
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
#: The part of a URL that may name a user and a password. Some users write their keys there, and a key may hold a slash.
_USER = re.compile(r"//(?:[^/?#\s]*:[^?#\s]*|[^/?#\s]*)@")
_EXAMPLE = "file:///mnt/checkpoints"

#: Names that at least one of the three clouds accepts; each cloud checks the rest itself.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}", re.ASCII)
#: "Naming and referencing containers, blobs, and metadata", REST API reference, and the change feed's page: Azure's own
#: containers, each with rules of its own.
_OF_AZURE = ("$root", "$web", "$logs", "$blobchangefeed")


@dataclass(frozen=True, slots=True)
class StoreKind:
    """The kind of store that a scheme means."""

    name: str
    #: The term for the first part of the path: bucket or container.
    place: str
    module: str
    factory: str
    #: The name in `optional_deps`.
    extra: str
    #: A package that comes with the extra.
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
    """A place in a cloud's store, as a URL names it."""

    url: str
    #: Bucket or container.
    bucket: str
    #: The prefix of every key: "" or "some/directory/".
    prefix: str
    options: Mapping[str, str]

    def key(self, key: str) -> str:
        """Return the whole name of an object in the bucket."""
        return self.prefix + key


def check_url(url: str) -> None:
    """Refuse a text that is not the URL of a store.

    Raises:
        UsageError: the message has the value, and the URL that was probably meant.
    """
    if _SCHEME.match(url) is None:
        # absolute() only turns a relative path into the absolute one that a URL needs.
        scheme, stop, rest = url.partition(":" if ":" in url else "//")
        path = url.removeprefix("file:")
        if stop and scheme.lower() in CLOUDS:
            place = rest.strip("/")
            hint = f"{scheme.lower()}://{place or f'{CLOUDS[scheme.lower()].place}/prefix'}"
        else:
            hint = Path(path).absolute().as_uri() if path and "\0" not in path else _EXAMPLE
        raise UsageError(f"store {shown(url)!r} is not a URL; write it as {hint} [SG308]")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(
            f"store {shown(url)!r} is not a URL ({error}); use one such as {_EXAMPLE} [SG308]"
        ) from error
    if parts.scheme in CLOUDS:
        locate(url)
        return
    if parts.scheme != "file":
        raise UsageError(
            f"store {shown(url)!r} has scheme {parts.scheme!r}, which is unknown; use s3://bucket/prefix, gs://bucket/prefix, "
            f"az://container/prefix, or {_EXAMPLE} [SG308]"
        )
    if parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"store {shown(url)!r} names a host, {parts.netloc.rpartition('@')[2]!r}; a path on this machine has three slashes: "
            f"file:///{parts.netloc.rpartition('@')[2]}{parts.path} [SG308]"
        )
    if parts.query or parts.fragment:
        raise UsageError(
            f"store {shown(url)!r} has a '?' or '#'; a path that holds one is written %3F or %23 [SG308]"
        )
    path = unquote(parts.path)
    if path in ("", "/") or "\0" in path:
        raise UsageError(f"store {shown(url)!r} names no directory; use one, such as {_EXAMPLE} [SG308]")


def scheme_of(url: str) -> str:
    """Return the scheme of a store's URL: "s3", "file" … It says which store it is."""
    return urlsplit(url).scheme


def shown(url: str) -> str:
    """Return a URL for messages, without any password in it."""
    return _USER.sub("//…@", url)


def inside(url: str, path: str) -> str:
    """Return the URL of `path` in the store at `url`; the path goes before the options."""
    head, mark, options = url.partition("?")
    return f"{head.rstrip('/')}/{path}{mark}{options}"


def locate(url: str) -> Location:
    """Return the place in a cloud that a URL names.

    Raises:
        UsageError: as for `check_url`, which has checked the rest of the URL.
    """
    parts = urlsplit(url)
    cloud = CLOUDS[parts.scheme]
    example = f"{parts.scheme}://{cloud.place}/prefix"
    bucket = parts.netloc
    if parts.scheme == "az" and bucket in _OF_AZURE:
        raise UsageError(
            f"store {shown(url)!r}: {bucket!r} is one of Azure's own containers, which are not taken: name one of yours [SG308]"
        )
    if _BUCKET.fullmatch(bucket) is None:
        raise UsageError(f"store {shown(url)!r} names no {cloud.place}; write it as {example} [SG308]")
    path = unquote(parts.path).strip("/")
    if path and not all(is_segment(segment) for segment in path.split("/")):
        raise UsageError(
            f"store {shown(url)!r} has the prefix {path!r}; use letters, digits and ._@=+,- between slashes, as in {example} [SG308]"
        )
    if parts.fragment:
        raise UsageError(f"store {shown(url)!r} has a '#'; write it as {example} [SG308]")
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in cloud.options:
            # The message omits the option's value, which may be a key.
            raise UsageError(
                f"store {shown(url.partition('?')[0])!r} has the option {name!r}; {cloud.name} knows {', '.join(cloud.options)} [SG308]"
            )
        if not value or name in options:
            raise UsageError(
                f"store {shown(url)!r}: option {name!r} needs one value, as in {example}?{name}=VALUE [SG308]"
            )
        options[name] = value
    if "endpoint" in options:
        _check_endpoint(url.partition("?")[0], parts.scheme, options["endpoint"])
    return Location(url, bucket, f"{path}/" if path else "", options)


def _check_endpoint(store: str, scheme: str, endpoint: str) -> None:
    """Refuse an endpoint that no SDK could use, before an SDK is loaded: each reports it differently, and some by a bug.

    Raises:
        UsageError: the message omits any part that may be a password.
    """
    if "@" in endpoint:
        raise UsageError(
            f"store {shown(store)!r}: its endpoint names a user; leave that out: credentials come from the environment, as "
            "the cloud's own SDK finds them [SG308]"
        )
    try:
        # STORAGE_EMULATOR_HOST has no scheme, and users may copy its form here.
        parts = urlsplit(endpoint if scheme != "gs" or "://" in endpoint else f"http://{endpoint}")
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or brackets around text that is not an address
        sound = False
        parts = urlsplit("")
    if not sound or parts.query or parts.fragment or any(each <= " " for each in endpoint):
        example = "https://NAME.blob.core.windows.net" if scheme == "az" else "https://storage.example:9000"
        raise UsageError(
            f"store {shown(store)!r}: endpoint={endpoint.partition('?')[0]!r} is no endpoint; write it as {example} [SG308]"
        )


def read_url(origin: str, text: str) -> str:
    """Return an option's value, checked as a store's URL.

    Raises:
        UsageError: the value is not a URL of a store; the message begins with `origin`.
    """
    try:
        check_url(text)
    except UsageError as error:
        raise UsageError(f"{origin}: {error}") from error
    return text
