"""gs://bucket/prefix through google-cloud-storage: the client has the credentials and the endpoint, its session sends requests.

The five requests of the JSON API that a store needs are written here, because of three faults of the SDK. Its listing starts a
thread that asks for the bucket's metadata, outside any deadline and with one more permission (3.17). Its batch hides all
failures behind the first. Its uploads copy (see below).

Permissions: storage.objects.create, get, list and delete on the bucket. (roles/storage.objectUser has them, and more.)

The service checks an object's CRC32C before the object exists, if the sender names it. So the store sends it before the
bytes, in one multipart upload. A resumable upload would cost one more round trip for each object.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

import requests
from google.api_core.exceptions import GoogleAPICallError, from_http_response

from ...dates import parse_iso
from ...errors import CorruptError, NotFoundError, UnavailableError, UsageError
from ..base import Credentials, ObjectInfo, Sent, check_key, check_prefix
from ..errors import foreign
from ..http import CONNECTIONS, fill, remaining, within
from ..url import Location
from .batch import CONTENT_TYPE, MOST, answers, batch
from .credentials import GCSSession
from .errors import CREATE, DELETE, GET, LIST, answered
from .evidence import IN_METADATA, checksum, checksums, googles, has_bytes, is_of, resource, shown

log = logging.getLogger("spotguard.providers")

#: Statuses by which a service without batch requests answers one: Google's own storage-testbench sends 501.
_NO_BATCH = {404, 405, 501}

#: Statuses of a missing object.
_GONE = {404, 410}

#: What an object's metadata must say for a put, a read or a delete whose own answer is in doubt.
_WITNESS = "name,size,crc32c,md5Hash"

_KMS_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")


class _MultipartBody:
    """A multipart body around a buffer. It never copies the buffer, and can be sent repeatedly.

    Client CPU of 64 MiB objects, over plain HTTP to a sink on the same machine, with CRC32C: 0.28 s/GB. The SDK's
    upload_from_string, which is resumable from 8 MiB on and so needs two requests: 0.72 without a checksum. The SDK's
    multipart upload, which reads and joins the parts into fresh memory: 3.6.
    """

    def __init__(self, metadata: Mapping[str, str], data: memoryview) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/related; boundary={boundary}"
        self._pieces = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
            data,
            f"\r\n--{boundary}--".encode(),
        )

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._pieces)


class GCSStore:
    """A `BlobStore` in a bucket.

    Args:
        location: the place that the URL names.
        page: objects in one page of a listing; 1000 is the service's own limit.
        calls: deletes in one request.
    """

    def __init__(self, location: Location, page: int = 1000, calls: int = MOST) -> None:
        self.url = location.url
        self.parallel = CONNECTIONS
        self._at = location
        self._page, self._calls = page, calls
        #: Whether to send batches; False after the service has refused one as unknown.
        self._batches = True
        #: Whether the service keeps checksums of objects: known once the metadata of one has had any.
        self._keeps_sums = False
        self._session = GCSSession(location)
        options = location.options
        self._all_options: dict[str, str] = {}
        self._put_options: dict[str, str] = {}
        if "user-project" in options:
            self._all_options["userProject"] = options["user-project"]
        if (key := options.get("kms-key-name")) is not None:
            if _KMS_KEY.fullmatch(key) is None:
                raise UsageError(
                    f"store {self.url!r} names no key of KMS with kms-key-name={key}; "
                    "write projects/P/locations/L/keyRings/R/cryptoKeys/K"
                )
            self._put_options["kmsKeyName"] = key

    def warm(self, *, timeout: float | None = None) -> None:
        """Fetch a lasting token, and open this thread's connection with a request for an object that does not exist."""
        doing = f"reach {self.url}"
        with within(timeout), answered(doing, GET):
            self._session.freshen()
            try:
                response = self._ask("GET", self._object("spotguard-warm"), {"fields": "name"})
            except GoogleAPICallError as error:
                # Without the permission to list, the service answers "forbidden" for a missing object.
                if error.code not in (403, 404) or not googles(error.response):
                    raise
            else:
                raise foreign(doing, f"there is an object that nobody makes ({shown(response)})")

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        """Upload the whole object; the service refuses bytes that do not match the CRC32C before them."""
        self._put(key, data, timeout, sent, {})

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """Upload as `put` does, unless the key exists (generation 0 means no object); return whether it was uploaded."""
        return self._put(key, data, timeout, None, {"ifGenerationMatch": "0"})

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Return the whole object, checked against the service's CRC32C of it."""
        doing = f"get {self._named(check_key(key))}"
        with within(timeout), answered(doing, GET), self._media(doing, key) as response:
            data = bytearray(_length(doing, response))
            view = memoryview(data)
            _receive(doing, response, view)
            (name, value), given = checksum(view), checksums(response)
            if given.get(name, value) != value:
                raise CorruptError(f"{doing}: these are not the bytes of the {name} that came with them")
            if not has_bytes(response):
                self._confirm(doing, f"the answer is not Google's ({shown(response)})", key, view)
            return bytes(data)

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` from the object's byte `start` on, in one request."""
        doing, view = f"read {self._named(check_key(key))}", buffer.cast("B")
        with within(timeout), answered(doing, GET):
            if not view:
                self._metadata(doing, key)
                return
            with self._media(doing, key, start, len(view)) as response:
                came = response.headers.get("Content-Range", "")
                if response.status_code != 206 or not came.startswith(f"bytes {start}-"):
                    raise foreign(doing, f"a range was asked for, and another came ({shown(response)})")
                if not has_bytes(response) and came.rpartition("/")[2] != self._metadata(doing, key)["size"]:
                    raise foreign(doing, f"a range of another object came ({came})")
                size = min(len(view), _length(doing, response))
                _receive(doing, response, view[:size])
            if size < len(view):
                raise CorruptError(
                    f"{doing}: {start + size} bytes are there, {start + len(view)} were expected"
                )

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in order of keys, page by page."""
        doing, remains = f"list {self._named(check_prefix(prefix))}", remaining(timeout)
        asked = {
            "prefix": self._at.key(prefix),
            "maxResults": str(self._page),
            "fields": "kind,items(name,size,updated),nextPageToken",
        }
        while True:
            with within(remains()), answered(doing, LIST):
                objects, more = _page(doing, self._ask("GET", f"/storage/v1/b/{self._at.bucket}/o", asked))
            for name, size, modified in objects:
                yield ObjectInfo(name.removeprefix(self._at.prefix), size, modified)
            if not more:
                return
            asked["pageToken"] = more

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete objects, a hundred with one request if the service knows batches."""
        doing, remains = f"delete {self.url}", remaining(timeout)
        named = [check_key(key) for key in keys]
        for at in range(0, len(named), self._calls):
            with within(remains()), answered(doing, DELETE):
                some = named[at : at + self._calls]
                if not self._batches or not self._delete(doing, some):
                    for key in some:
                        self._delete_one(doing, key)
                    self._batches = False

    def credentials(self) -> Credentials | None:
        """Return the credentials in use, for people."""
        return self._session.credentials()

    def renew_credentials(self, *, timeout: float | None = None) -> None:
        """Fetch another token."""
        with within(timeout), answered(f"reach {self.url}", GET):
            self._session.renew()

    # --- inside ---

    def _put(
        self, key: str, data: memoryview, timeout: float | None, sent: Sent | None, options: Mapping[str, str]
    ) -> bool:
        doing, view = f"put {self._named(check_key(key))}", data.cast("B")
        with within(timeout, sent), answered(doing, CREATE):
            name, value = checksum(view)
            body = _MultipartBody({"name": self._at.key(key), IN_METADATA[name]: value}, view)
            asked = {
                "uploadType": "multipart",
                "fields": f"name,size,generation,{IN_METADATA[name]}",
                **self._put_options,
                **options,
            }
            try:
                headers = {"Content-Type": body.content_type}
                response = self._ask(
                    "POST", f"/upload/storage/v1/b/{self._at.bucket}/o", asked, body, headers
                )
            except GoogleAPICallError as error:
                # Without this store's condition, a 412 comes from a rule of the organisation, for example that objects use its
                # own key. It does not mean that the object exists.
                if error.code == 412 and "ifGenerationMatch" in options and googles(error.response):
                    return False
                raise
            made = resource(response)
            if not made.get("generation") or not is_of(made, self._at.key(key), len(view), {name: value}):
                self._confirm(doing, f"the answer is not Google's ({shown(response)})", key, view)
        return True

    def _confirm(self, doing: str, why: str, key: str, view: memoryview) -> None:
        """Compare the object's metadata with its bytes, because another server may have answered for the service.

        Raises:
            UnavailableError: the object's metadata could not be read, or are those of other bytes.
        """
        try:
            kept = self._metadata(doing, key)
        except NotFoundError as error:
            raise foreign(doing, f"{why}, and there is no such object") from error
        name, value = checksum(view)
        self._keeps_sums = self._keeps_sums or bool(kept.get(IN_METADATA[name]))
        if not is_of(kept, self._at.key(key), len(view), {name: value} if self._keeps_sums else {}):
            raise foreign(doing, f"{why}, and the object has other bytes")

    def _metadata(self, doing: str, key: str) -> Mapping[str, Any]:
        """Return the object's metadata.

        Raises:
            NotFoundError: the service itself says that there is no such object.
        """
        try:
            response = self._ask("GET", self._object(key), {"fields": _WITNESS})
        except GoogleAPICallError as error:
            if error.code in _GONE and googles(error.response):
                raise NotFoundError(f"{doing}: no such object ({error.code})") from error
            raise
        kept = resource(response)
        if kept.get("name") != self._at.key(key) or not str(kept.get("size", "")).isdecimal():
            raise foreign(doing, f"these are no metadata of an object ({shown(response)})")
        return kept

    def _delete(self, doing: str, keys: Sequence[str]) -> bool:
        """Delete with one request; return whether the service knows such requests."""
        query = f"?{urlencode(self._all_options)}" if self._all_options else ""
        targets = [self._object(key) + query for key in keys]
        try:
            response = self._ask(
                "POST", "/batch/storage/v1", {}, batch(targets), {"Content-Type": CONTENT_TYPE}
            )
        except GoogleAPICallError as error:
            if error.code not in _NO_BATCH:
                raise
            log.info("%s has no batch requests (%s): objects are deleted one by one", self.url, error.code)
            return False
        try:
            for answer in answers(response, targets):
                if answer.status_code >= 300 and answer.status_code != 404:
                    raise _failure(answer)
        except ValueError as error:
            raise foreign(doing, f"this is no answer to a batch ({error}; {shown(response)})") from error
        return True

    def _delete_one(self, doing: str, key: str) -> None:
        try:
            response = self._ask("DELETE", self._object(key), {})
        except GoogleAPICallError as error:
            if error.code not in _GONE:
                raise
            response = error.response
        if not googles(response):
            # The service's answer has no body by which to know it. The object's absence is the proof.
            with suppress(NotFoundError):
                self._metadata(doing, key)
                raise foreign(doing, f"the object is still there ({shown(response)})")

    def _media(self, doing: str, key: str, start: int = 0, size: int | None = None) -> requests.Response:
        """Return the bytes of an object, or `size` of them, as a stream."""
        # Without this, the service may send an object that was stored compressed either compressed or not.
        headers = {"Accept-Encoding": "identity"}
        if size is not None:
            headers["Range"] = f"bytes={start}-{start + size - 1}"
        path = f"/download{self._object(key)}"
        try:
            return self._ask("GET", path, {"alt": "media"}, headers=headers, stream=True)
        except GoogleAPICallError as error:
            if googles(error.response) or error.code not in (*_GONE, 416):
                raise
            # An emulator's failures of downloads are plain text, like a proxy's.
            there = int(self._metadata(doing, key)["size"])
            if error.code == 416 and there <= start:
                raise CorruptError(
                    f"{doing}: {there} bytes are there, {start + (size or 0)} were expected"
                ) from error
            raise

    def _ask(
        self,
        method: str,
        path: str,
        asked: Mapping[str, str],
        body: _MultipartBody | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> requests.Response:
        """Send one request of the JSON API.

        Raises:
            GoogleAPICallError: the answer is an error.
        """
        response = self._session.http().request(
            method,
            f"{self._session.client().api_endpoint}{path}",
            params={**asked, **self._all_options},
            data=body,  # type: ignore[arg-type]  # it accepts a memoryview as well as bytes
            headers=headers,
            stream=stream,
        )
        if response.status_code >= 300:
            with response:
                raise _failure(response)
        return response

    def _object(self, key: str) -> str:
        return f"/storage/v1/b/{self._at.bucket}/o/{quote(self._at.key(key), safe='')}"

    def _named(self, key: str) -> str:
        return f"gs://{self._at.bucket}/{self._at.key(key)}"


def _failure(response: requests.Response) -> Exception:
    failure: GoogleAPICallError = from_http_response(response)  # type: ignore[no-untyped-call, unused-ignore]
    return failure


def _page(doing: str, response: requests.Response) -> tuple[list[tuple[str, int, float]], str]:
    """Return the page's names, sizes and dates, and the token of the next page."""
    try:
        page = response.json()
        if page.get("kind") != "storage#objects":  # `{}` would pass for an empty listing
            raise ValueError("no listing")
        objects = [
            (str(each["name"]), int(each["size"]), parse_iso(each.get("updated")) or 0.0)
            for each in page.get("items", ())
        ]
        return objects, page.get("nextPageToken", "")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise foreign(doing, f"this is no answer to a listing ({shown(response)})") from error


def _length(doing: str, response: requests.Response) -> int:
    try:
        return int(response.headers["Content-Length"])
    except (KeyError, ValueError) as error:
        raise foreign(doing, f"the answer has no length ({shown(response)})") from error


def _receive(doing: str, response: requests.Response, view: memoryview) -> None:
    """Fill the view with the announced number of bytes. (urllib3 before 2 reports no error if a connection ends early.)"""
    if fill(response.raw, view) < len(view):
        raise UnavailableError(f"{doing}: the answer ended early")
