"""What Cloud Storage knows of its objects, and its rules: generations, preconditions, checksums, pages.

Written from the pages of the JSON API (https://cloud.google.com/storage/docs/json_api/v1/objects). Values in, values
out; one lock makes each act whole. The bytes are elsewhere, under the generation's number.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import google_crc32c

Resource = dict[str, Any]

#: "The service may return fewer results than maxResults": never more than this a page.
PAGE = 1000


class Refused(Exception):
    """An error reply in the making.

    Args:
        status: of HTTP.
        reason: the API's word for programs.
        message: the API's words for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def body(self) -> Resource:
        error = {"message": self.message, "domain": "global", "reason": self.reason}
        if self.reason == "conditionNotMet":
            error |= {"locationType": "header", "location": "If-Match"}
        return {"error": {"code": self.status, "message": self.message, "errors": [error]}}


@dataclass(frozen=True, slots=True)
class Sums:
    """The checksums of some bytes, as the API writes them."""

    crc32c: str
    md5: str

    @classmethod
    def of(cls, body: bytes) -> Sums:
        crc32c = google_crc32c.value(body).to_bytes(4, "big")
        return cls(base64.b64encode(crc32c).decode(), base64.b64encode(hashlib.md5(body).digest()).decode())

    def check(self, claimed: Mapping[str, str]) -> None:
        """Refuse the upload when what its sender claimed, as `crc32c` or `md5`, is not so."""
        for name, label, value in (("crc32c", "CRC32C", self.crc32c), ("md5", "MD5 hash", self.md5)):
            if claimed.get(name, value) != value:
                message = f'Provided {label} "{claimed[name]}" doesn\'t match calculated {label} "{value}".'
                raise Refused(400, "invalid", message)


class Catalogue:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, Resource]] = {}
        self._generations = itertools.count(time.time_ns() // 1000)

    def make_bucket(self, name: str) -> Resource:
        with self._lock:
            if name in self._buckets:
                raise Refused(409, "conflict", "Your previous request to create the named bucket succeeded.")
            self._buckets[name] = {}
        return {"kind": "storage#bucket", "id": name, "name": name, "location": "US"}

    def remove_bucket(self, name: str) -> None:
        with self._lock:
            if self._objects(name):
                raise Refused(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._buckets[name]

    def bucket(self, name: str) -> Resource:
        with self._lock:
            self._objects(name)
        return {"kind": "storage#bucket", "id": name, "name": name, "location": "US"}

    def next_generation(self) -> int:
        return next(self._generations)

    def insert(
        self, bucket: str, name: str, given: Resource, body: tuple[int, int, Sums], expected: int | None
    ) -> tuple[Resource, str | None]:
        """Make `name` stand for a new generation.

        Args:
            given: what the sender says of it: contentType, metadata.
            body: its generation, size and checksums.
            expected: ifGenerationMatch: the generation that must be there, 0 for none.

        Returns:
            The object, and the generation that it replaced.
        """
        generation, size, sums = body
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        made: Resource = {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{generation}",
            "name": name,
            "bucket": bucket,
            "generation": str(generation),
            "metageneration": "1",
            "contentType": given.get("contentType", "application/octet-stream"),
            "storageClass": "STANDARD",
            "size": str(size),
            "md5Hash": sums.md5,
            "crc32c": sums.crc32c,
            "etag": base64.b64encode(str(generation).encode()).decode(),
            "timeCreated": now,
            "updated": now,
        }
        if "metadata" in given:
            made["metadata"] = given["metadata"]
        with self._lock:
            objects = self._objects(bucket)
            _meet(objects.get(name), expected)
            replaced = objects.get(name)
            objects[name] = made
        return made, replaced["generation"] if replaced else None

    def get(self, bucket: str, name: str) -> Resource:
        with self._lock:
            return self._found(bucket, name)

    def delete(self, bucket: str, name: str, expected: int | None) -> str:
        """The generation that is no more."""
        with self._lock:
            found = self._found(bucket, name)
            _meet(found, expected)
            del self._buckets[bucket][name]
        return str(found["generation"])

    def page(self, bucket: str, asked: Mapping[str, str]) -> Resource:
        """A page of objects in the order of their names' UTF-8; the token names the last one of the page before."""
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        limit = min(int(asked.get("maxResults", PAGE)), PAGE)
        after = base64.urlsafe_b64decode(asked.get("pageToken", "")).decode()
        with self._lock:
            objects = dict(self._objects(bucket))
        entries: dict[str, Resource | None] = {}  # an object, or None for a prefix
        for name in sorted(objects, key=str.encode):
            if not name.startswith(prefix) or name < asked.get("startOffset", ""):
                continue
            if "endOffset" in asked and name >= asked["endOffset"]:
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            entries[prefix + head + delimiter if found else name] = None if found else objects[name]
        rest = [entry for entry in entries if entry.encode() > after.encode()]
        page: Resource = {"kind": "storage#objects"}
        if items := [entries[entry] for entry in rest[:limit] if entries[entry] is not None]:
            page["items"] = items
        if prefixes := [entry for entry in rest[:limit] if entries[entry] is None]:
            page["prefixes"] = prefixes
        if len(rest) > limit:
            page["nextPageToken"] = base64.urlsafe_b64encode(rest[limit - 1].encode()).decode()
        return page

    def _objects(self, bucket: str) -> dict[str, Resource]:
        if bucket not in self._buckets:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        return self._buckets[bucket]

    def _found(self, bucket: str, name: str) -> Resource:
        if name not in (objects := self._objects(bucket)):
            raise Refused(404, "notFound", f"No such object: {bucket}/{name}")
        return objects[name]


def _meet(found: Resource | None, expected: int | None) -> None:
    if expected is not None and expected != (int(found["generation"]) if found else 0):
        message = "At least one of the pre-conditions you specified did not hold."
        raise Refused(412, "conditionNotMet", message)
