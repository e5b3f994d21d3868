"""gs://bucket/prefix through google-cloud-storage: the client has the credentials and the endpoint, its session sends requests.

The five requests of the JSON API that a store needs are written here, because of three faults of the SDK. Its listing starts a
thread that asks for the bucket's metadata, outside any deadline and with one more permission (3.17). Its batch hides all
failures behind the first. Its uploads copy (see below).

Permissions: storage.objects.create, get, list and delete on the bucket. (roles/storage.objectUser has them, and more.)

The service checks an object's CRC32C before the object exists, if the sender names it. So the store sends it before the
bytes, in one multipart upload. A resumable upload would cost one more round trip for each object.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote, urlencode

import google_crc32c
import requests
from google.api_core.exceptions import GoogleAPICallError, from_http_response

from ...dates import parse_iso
from ...errors import CorruptError, UnavailableError, UsageError
from ..base import Credentials, ObjectInfo, Sent, check_key, check_prefix
from ..http import CONNECTIONS, fill, remaining, within
from ..url import Location
from .batch import CONTENT_TYPE, MOST, answers, batch
from .credentials import GCSSession
from .errors import CREATE, DELETE, GET, LIST, answered

log = logging.getLogger("spotguard.providers")

#: Bytes copied at a time for google_crc32c, which takes only `bytes`: they stay in the CPU's cache.
_CRC_PIECE = 256 * 2**10

#: Names of the checksums in an object's metadata, by their names in X-Goog-Hash.
_IN_METADATA = {"crc32c": "crc32c", "md5": "md5Hash"}

#: Statuses by which a service without batch requests answers one: Google's own storage-testbench sends 501.
_NO_BATCH = {404, 405, 501}

_PROXY = "a proxy may be in between"

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
        with within(timeout), answered(f"reach {self.url}", GET):
            self._session.freshen()
            try:
                self._ask("GET", self._object("spotguard-warm"), {"fields": "name"})
            except GoogleAPICallError as error:
                if error.code not in (403, 404):
                    raise

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
        with within(timeout), answered(doing, GET), self._media(key) as response:
            data = bytearray(_length(doing, response))
            view = memoryview(data)
            _receive(doing, response, view)
            name, value = _sum(view)
            if _sums(response).get(name, value) != value:
                raise CorruptError(f"{doing}: these are not the bytes of the {name} that came with them")
            return bytes(data)

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` from the object's byte `start` on, in one request."""
        doing, view = f"read {self._named(check_key(key))}", buffer.cast("B")
        with within(timeout), answered(doing, GET):
            if not view:
                self._ask("GET", self._object(key), {"fields": "name"})
                return
            with self._media(key, f"bytes={start}-{start + len(view) - 1}") as response:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                    raise UnavailableError(f"{doing}: a range was asked for, and another came: {_PROXY}")
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
            "fields": "items(name,size,updated),nextPageToken",
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
        paths = [self._object(check_key(key)) for key in keys]
        for at in range(0, len(paths), self._calls):
            with within(remains()), answered(doing, DELETE):
                some = paths[at : at + self._calls]
                if self._batches:
                    self._delete(doing, some)
                else:
                    self._delete_singly(some)

    def credentials(self) -> Credentials | None:
        """Return the credentials in use, for people."""
        return self._session.credentials()

    # --- inside ---

    def _put(
        self, key: str, data: memoryview, timeout: float | None, sent: Sent | None, options: Mapping[str, str]
    ) -> bool:
        doing, view = f"put {self._named(check_key(key))}", data.cast("B")
        with within(timeout, sent), answered(doing, CREATE):
            name, value = _sum(view)
            body = _MultipartBody({"name": self._at.key(key), _IN_METADATA[name]: value}, view)
            asked = {"uploadType": "multipart", "fields": _IN_METADATA[name], **self._put_options, **options}
            try:
                headers = {"Content-Type": body.content_type}
                made = self._ask(
                    "POST", f"/upload/storage/v1/b/{self._at.bucket}/o", asked, body, headers
                ).json()
            except GoogleAPICallError as error:
                # Without this store's condition, a 412 comes from a rule of the organisation, for example that objects use its
                # own key. It does not mean that the object exists.
                if error.code == 412 and "ifGenerationMatch" in options:
                    return False
                raise
            if not isinstance(made, dict) or made.get(_IN_METADATA[name]) != value:
                raise UnavailableError(f"{doing}: the answer does not confirm the object: {_PROXY}")
        return True

    def _delete(self, doing: str, paths: Sequence[str]) -> None:
        query = f"?{urlencode(self._all_options)}" if self._all_options else ""
        targets = [path + query for path in paths]
        try:
            response = self._ask(
                "POST", "/batch/storage/v1", {}, batch(targets), {"Content-Type": CONTENT_TYPE}
            )
        except GoogleAPICallError as error:
            if error.code not in _NO_BATCH:
                raise
            log.info("%s has no batch requests (%s): objects are deleted one by one", self.url, error.code)
            self._batches = False
            self._delete_singly(paths)
            return
        try:
            for answer in answers(response, targets):
                if answer.status_code >= 300 and answer.status_code != 404:
                    raise _failure(answer)
        except ValueError as error:
            raise UnavailableError(f"{doing}: this is no answer to a batch ({error}): {_PROXY}") from error

    def _delete_singly(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._ask("DELETE", path, {}).close()
            except GoogleAPICallError as error:
                if error.code != 404:
                    raise

    def _media(self, key: str, wanted: str | None = None) -> requests.Response:
        """Return the bytes of an object, or a range of them, as a stream."""
        # Without this, the service may send an object that was stored compressed either compressed or not.
        headers = {"Accept-Encoding": "identity", **({"Range": wanted} if wanted else {})}
        return self._ask(
            "GET", f"/download{self._object(key)}", {"alt": "media"}, headers=headers, stream=True
        )

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


def _sum(view: memoryview) -> tuple[str, str]:
    """Return the checksum that the service compares with the received bytes: its name in headers, and its value.

    Without machine code, google_crc32c takes a second for a few MB. Then hashlib's MD5 (0.7 GB/s) takes its place.
    """
    if google_crc32c.implementation != "c":
        return "md5", base64.b64encode(hashlib.md5(view, usedforsecurity=False).digest()).decode()
    crc = 0
    for at in range(0, len(view), _CRC_PIECE):
        crc = google_crc32c.extend(crc, bytes(view[at : at + _CRC_PIECE]))  # type: ignore[no-untyped-call, unused-ignore]
    return "crc32c", base64.b64encode(crc.to_bytes(4, "big")).decode()


def _sums(response: requests.Response) -> dict[str, str]:
    """Return the checksums of a header such as X-Goog-Hash: crc32c=n03x6A==,md5=Ojk9c3dhfxgoKVVHYwFbHQ=="""
    words = response.headers.get("X-Goog-Hash", "").split(",")
    return {name.strip(): value.strip() for name, _, value in (word.partition("=") for word in words)}


def _page(doing: str, response: requests.Response) -> tuple[list[tuple[str, int, float]], str]:
    """Return the page's names, sizes and dates, and the token of the next page."""
    try:
        page = response.json()
        objects = [
            (str(each["name"]), int(each["size"]), parse_iso(each.get("updated")) or 0.0)
            for each in page.get("items", ())
        ]
        return objects, page.get("nextPageToken", "")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"{doing}: this is no answer to a listing: {_PROXY}") from error


def _length(doing: str, response: requests.Response) -> int:
    try:
        return int(response.headers["Content-Length"])
    except (KeyError, ValueError) as error:
        raise UnavailableError(f"{doing}: the answer has no length: {_PROXY}") from error


def _receive(doing: str, response: requests.Response, view: memoryview) -> None:
    """Fill the view with the announced number of bytes. (urllib3 before 2 reports no error if a connection ends early.)"""
    if fill(response.raw, view) < len(view):
        raise UnavailableError(f"{doing}: the answer ended early: {_PROXY}")
