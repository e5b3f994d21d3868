"""az://container/prefix through azure-storage-blob: the SDK signs requests and parses answers, `http` carries the bytes.

An object is a block blob, written by one Put Blob and read by one Get Blob. The SDK's own way copies it twice on upload and
three times on download. The SDK's hooks for raw requests and responses, which run before signing and before reading, avoid
that. In CPU-s/GB of 32 MiB objects, reading takes 0.36 instead of 3.7; for writing see below.

Integrity: small objects (manifests, markers, attempts) carry their MD5, which the service checks. For large ones, the
manifest's CRC32 is checked at restore (law 6). MD5 would cost 1.6 CPU-s/GB. The CRC64 that Azure also checks would cost 0.8
with the only package that has it, which takes `bytes` only and keeps the GIL. The whole put may cost 1.0.

Permissions: the role Storage Blob Data Contributor on the container, or less: docs/reference/stores.md.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any, TypeVar

from azure.core.exceptions import HttpResponseError

from ...clock import Clock, SystemClock
from ...errors import CorruptError
from ..base import Credentials, ObjectInfo, Sent, check_key, check_prefix
from ..errors import foreign
from ..http import CONNECTIONS, fill, remaining, within
from ..url import Location
from .account import described, open_container
from .errors import NOT_THIS, STRANGER, NotAzures, answers, azures, code, refusal, refuse_foreign

T = TypeVar("T")

#: Azure's limits: requests in a batch, entries in a page of a listing.
_BATCH, _PAGE = 256, 5000

#: Bytes up to which an object carries its MD5, which takes 1.6 ms of a core.
_SMALL = 2**20

#: Codes of an unmet condition of `put_if_absent`. Any other 409 or 412 is an error.
_THERE = {"BlobAlreadyExists", "ConditionNotMet"}

#: Statuses of a batch that is not allowed or not known, while single deletes may still work.
_NO_BATCH = {400, 403, 404, 405, 501}


class AzureBlobStore:
    """A `BlobStore` in a container."""

    def __init__(self, location: Location, clock: Clock | None = None) -> None:
        self.url = location.url
        self.parallel = CONNECTIONS
        self._at = location
        self._clock = clock or SystemClock()
        self._container, self._token = open_container(location, self._clock)
        self._scope = {"encryption_scope": s} if (s := location.options.get("encryption-scope")) else {}
        self._batches = True
        #: Whether the service keeps MD5s of blobs: known once the properties of one have had it.
        self._keeps_sums = False

    def warm(self, *, timeout: float | None = None) -> None:
        """Fetch a lasting token, and open this thread's connection with a request for an object that does not exist."""
        doing = f"reach {self.url}"
        with self._doing(doing, timeout):
            if self._token is not None:
                self._token.keep()
            try:
                self._ask(lambda: self._blob("spotguard-warm").get_blob_properties())
            except HttpResponseError as error:
                if not azures(_headers(error)) or (error.status_code != 404 and code(error) not in NOT_THIS):
                    raise
            else:
                raise foreign(doing, "there is a blob that nobody makes")

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        """Upload the whole object with one Put Blob."""
        self._put(key, data, timeout, sent, overwrite=True)

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """Upload as `put` does, unless the key exists (If-None-Match); return whether it was uploaded."""
        return self._put(key, data, timeout, None, overwrite=False)

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Return the whole object."""
        doing, data = f"get {self._named(check_key(key))}", bytearray()

        def room(size: int) -> memoryview:
            data.extend(bytes(size))
            return memoryview(data)

        with self._doing(doing, timeout):
            try:
                headers = self._read(key, doing, room, offset=0)
            except HttpResponseError as error:
                if error.status_code != 416 or not azures(_headers(error)):
                    raise
                return b""  # the object exists, and is empty
            if headers["content-range"].rpartition("/")[2] != str(len(data)):
                raise NotAzures(f"{headers['content-range']} came for the whole blob")
            md5 = headers.get("x-ms-blob-content-md5", "") if len(data) <= _SMALL else ""
            if md5 and base64.b64decode(md5) != _md5(memoryview(data)):
                raise CorruptError(f"{doing}: these are not the bytes of the MD5 that came with them")
            return bytes(data)

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` from the object's byte `start` on, with one Get Blob."""
        doing, view = f"read {self._named(check_key(key))}", buffer.cast("B")

        def room(size: int) -> memoryview:
            return view

        with self._doing(doing, timeout):
            if view:
                self._read(key, doing, room, offset=start, length=len(view))
            else:
                self._ask(lambda: self._blob(key).get_blob_properties())

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """Return every object whose key starts with `prefix`, in order of keys."""
        doing, start = f"list {self._named(check_prefix(prefix))}", len(self._at.prefix)

        def pages() -> list[ObjectInfo]:
            # Accounts with a hierarchical namespace list directories as well, in the order of a tree.
            blobs = self._container.list_blobs(
                name_starts_with=self._at.key(prefix), results_per_page=_PAGE, include=["metadata"]
            )
            return [
                ObjectInfo(each.name[start:], each.size, _seconds(each.last_modified))
                for each in blobs
                if (each.metadata or {}).get("hdi_isfolder") != "true"
            ]

        with self._doing(doing, timeout):
            return iter(sorted(self._ask(pages), key=lambda info: info.key))

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete objects, 256 with one request if batches are allowed."""
        named, remains = [self._at.key(check_key(key)) for key in keys], remaining(timeout)
        for at in range(0, len(named), _BATCH):
            batch = named[at : at + _BATCH]
            with self._doing(f"delete {self.url}", remains()):
                if self._batches and self._delete_batch(batch):
                    continue
            for name in batch:
                with self._doing(f"delete {self._whole(name)}", remains()):
                    self._delete_one(name)
            self._batches = False  # only now: what refused the batch may have been another server

    def credentials(self) -> Credentials | None:
        """Return the credentials in use, for people."""
        return described(self._token, self._clock)

    def renew_credentials(self, *, timeout: float | None = None) -> None:
        """Fetch another token. A key and a SAS come from the environment, which does not change."""
        with self._doing(f"reach {self.url}", timeout):
            if self._token is not None:
                self._token.renew()

    # --- inside ---

    @contextmanager
    def _doing(self, doing: str, timeout: float | None, sent: Sent | None = None) -> Iterator[None]:
        token = nullcontext() if self._token is None else self._token.within(timeout)
        with within(timeout, sent), token, answers(doing, self._clock):
            yield

    def _put(
        self, key: str, data: memoryview, timeout: float | None, sent: Sent | None, overwrite: bool
    ) -> bool:
        doing, view = f"put {self._named(check_key(key))}", data.cast("B")
        headers = {"Content-Length": str(len(view))}
        if len(view) <= _SMALL:
            headers["Content-MD5"] = base64.b64encode(_md5(view)).decode()

        def load(request: Any) -> None:
            request.http_request.headers.update(headers)
            if view:
                request.http_request.data = view

        heard: dict[str, str] = {}

        def hear(answer: Any) -> None:
            heard.clear()
            heard.update((name.lower(), value) for name, value in answer.http_response.headers.items())

        def upload() -> Any:
            # The body bypasses the SDK, which would copy it. CPU-s/GB of 32 MiB objects to a sink: 0.18 this way,
            # 0.70 from bytes, 1.36 from a file-like object (a raw socket: 0.09).
            return self._blob(key).upload_blob(
                b"",
                length=0,
                overwrite=overwrite,
                raw_request_hook=load,
                raw_response_hook=hear,
                **self._scope,
            )

        with self._doing(doing, timeout, sent):
            try:
                self._ask(upload)
            except HttpResponseError as error:
                if not overwrite and code(error) in _THERE and azures(_headers(error)):
                    return False
                if not 200 <= (error.status_code or 0) < 300:
                    raise
                heard.clear()  # the SDK expects another status of success
            md5 = headers.get("Content-MD5")
            if not azures(heard) or "etag" not in heard or (md5 and heard.get("content-md5", md5) != md5):
                self._confirm(doing, key, view)
        return True

    def _confirm(self, doing: str, key: str, view: memoryview) -> None:
        """Compare the blob's properties with its bytes, because another server may have answered for the service.

        Raises:
            UnavailableError: the blob's properties could not be read, or are those of other bytes.
        """
        why = "the answer is not Azure's"
        try:
            kept = self._ask(lambda: self._blob(key).get_blob_properties())
        except HttpResponseError as error:
            if error.status_code != 404 or not azures(_headers(error)):
                raise
            raise foreign(doing, f"{why}, and there is no such blob") from error
        md5 = kept.content_settings.content_md5
        self._keeps_sums = self._keeps_sums or md5 is not None
        if kept.size != len(view) or (self._keeps_sums and bytes(md5 or b"") != _md5(view)):
            raise foreign(doing, f"{why}, and the blob has other bytes")

    def _read(
        self, key: str, doing: str, room: Callable[[int], memoryview], **where: int
    ) -> Mapping[str, str]:
        """Send one Get Blob, and read its bytes into the buffer that `room` returns; return the answer's headers."""
        heard: dict[str, str] = {}

        def drain(answer: Any) -> None:
            response = answer.http_response.internal_response
            if response.status_code >= 300:
                return  # an error, which the SDK parses
            try:
                refuse_foreign(answer)
                came = response.headers.get("Content-Range", "")
                if response.status_code != 206 or not came.startswith(f"bytes {where['offset']}-"):
                    raise NotAzures(f"{response.status_code}: a range was asked for, and another came")
                heard.update((name.lower(), value) for name, value in response.headers.items())
                buffer = room(int(response.headers["Content-Length"]))
                got = fill(response.raw, buffer)
                if got < len(buffer):
                    there, wanted = where["offset"] + got, where["offset"] + len(buffer)
                    raise CorruptError(f"{doing}: {there} bytes are there, {wanted} were expected")
            except BaseException:
                response.close()  # or the rest of the body would be read as the next answer
                raise

        self._ask(lambda: self._blob(key).download_blob(raw_response_hook=drain, **where))
        return heard

    def _delete_batch(self, names: Sequence[str]) -> bool:
        """Return whether a batch could be sent. Raise the error of any part that failed."""
        try:
            parts = self._ask(lambda: [*self._container.delete_blobs(*names, raise_on_any_failure=False)])
        except HttpResponseError as error:
            if error.status_code not in _NO_BATCH or code(error) in STRANGER | {"ContainerNotFound"}:
                raise
            return False
        if len(parts) != len(names):
            return False  # the outcome of the other parts is unknown
        for name, part in zip(names, parts, strict=True):
            error_code = part.headers.get("x-ms-error-code", "")
            if part.status_code == 400:
                return False  # before 12.24 the SDK misnames blobs if the path holds the account, as for emulators
            if part.status_code >= 300 and (part.status_code != 404 or error_code == "ContainerNotFound"):
                raise refusal(
                    f"delete {self._whole(name)}", part.status_code, error_code, part.headers, self._clock
                )
        return True

    def _delete_one(self, name: str) -> None:
        try:
            self._ask(lambda: self._container.delete_blob(name))
        except HttpResponseError as error:
            if error.status_code != 404 or code(error) == "ContainerNotFound" or not azures(_headers(error)):
                raise

    def _ask(self, request: Callable[[], T]) -> T:
        """Send one request; send it again if the token was refused and a new one is available."""
        try:
            return request()
        except HttpResponseError as error:
            refused = error.response is not None and (error.status_code == 401 or code(error) in STRANGER)
            if not refused or self._token is None or not self._token.renew():
                raise
        return request()

    def _blob(self, key: str) -> Any:
        return self._container.get_blob_client(self._at.key(key))

    def _named(self, key: str) -> str:
        return self._whole(self._at.key(key))

    def _whole(self, name: str) -> str:
        return f"az://{self._at.bucket}/{name}"


def _md5(view: memoryview) -> bytes:
    return hashlib.md5(view, usedforsecurity=False).digest()


def _headers(error: HttpResponseError) -> Mapping[str, str]:
    response: Any = error.response
    return {} if response is None else response.headers


def _seconds(date: datetime | None) -> float:
    return date.timestamp() if date is not None else 0.0
