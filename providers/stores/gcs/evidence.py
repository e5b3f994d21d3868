"""Evidence that Cloud Storage itself gave an answer, and what its answer says of an object.

A login page, a proxy or a load balancer may answer in the service's place, with any status. Such an answer must never count as
an upload, a deletion, an empty listing, a missing object, or an object's bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import google_crc32c
import requests

from ..errors import line

#: Bytes copied at a time for google_crc32c, which takes only `bytes`: they stay in the CPU's cache.
_CRC_PIECE = 256 * 2**10

#: Names of the checksums in an object's metadata, by their names in X-Goog-Hash.
IN_METADATA = {"crc32c": "crc32c", "md5": "md5Hash"}

#: A header of every answer of the service. It has no other sign in "204 No Content", and in a download's failure, whose text is HTML.
_SERVICE = "X-GUploader-UploadID"
#: A header of every answer with an object's bytes; emulators give it too.
_BYTES = "X-Goog-Generation"


def googles(response: requests.Response | None) -> bool:
    """Return whether the service gave this answer, or an emulator, whose failures are the JSON API's."""
    if response is None or _SERVICE in response.headers or _BYTES in response.headers:
        return response is not None
    failure = resource(response).get("error")
    return isinstance(failure, dict) and failure.get("code") == response.status_code


def has_bytes(response: requests.Response) -> bool:
    """Return whether a download's answer has the service's headers. (Its body is still to be read.)"""
    return _SERVICE in response.headers or _BYTES in response.headers


def resource(response: requests.Response) -> Mapping[str, Any]:
    """Return the JSON object of an answer; {} for any other answer."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def is_of(metadata: Mapping[str, Any], name: str, size: int, sums: Mapping[str, str]) -> bool:
    """Return whether an object's metadata have this name, this size and these checksums."""
    wanted = {"name": name, "size": str(size), **{IN_METADATA[each]: value for each, value in sums.items()}}
    return all(str(metadata.get(each)) == value for each, value in wanted.items())


def shown(response: requests.Response) -> str:
    """Return an answer's status, kind and first words, for a message."""
    said = [str(response.status_code), response.headers.get("Content-Type", "").partition(";")[0]]
    if response.__dict__["_content"] is not False:  # it is no stream, of which the body is still to be read
        said.append(line(response.text[:200]))
    return " ".join(filter(None, said))


def checksum(view: memoryview) -> tuple[str, str]:
    """Return the checksum that the service compares with the received bytes: its name in headers, and its value.

    Without machine code, google_crc32c takes a second for a few MB. Then hashlib's MD5 (0.7 GB/s) takes its place.
    """
    if google_crc32c.implementation != "c":
        return "md5", base64.b64encode(hashlib.md5(view, usedforsecurity=False).digest()).decode()
    crc = 0
    for at in range(0, len(view), _CRC_PIECE):
        crc = google_crc32c.extend(crc, bytes(view[at : at + _CRC_PIECE]))  # type: ignore[no-untyped-call, unused-ignore]
    return "crc32c", base64.b64encode(crc.to_bytes(4, "big")).decode()


def checksums(response: requests.Response) -> dict[str, str]:
    """Return the checksums of a header such as X-Goog-Hash: crc32c=n03x6A==,md5=Ojk9c3dhfxgoKVVHYwFbHQ=="""
    words = response.headers.get("X-Goog-Hash", "").split(",")
    return {name.strip(): value.strip() for name, _, value in (word.partition("=") for word in words)}
