"""s3://bucket/prefix through boto3: boto3 finds credentials, signs requests and parses answers, `http` carries the bytes.

Permissions: s3:PutObject, s3:GetObject, s3:DeleteObject on the prefix, s3:ListBucket on the bucket.
"""

from __future__ import annotations

import base64
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError

from ...errors import CorruptError, NotFoundError, UsageError
from ..base import Credentials, ObjectInfo, Sent, check_key, check_prefix
from ..errors import foreign
from ..http import CONNECTIONS, Transport, fill, remaining, within
from ..url import Location
from .credentials import S3Session
from .errors import OUTDATED, answered, code, own, refused, status, without_batch

log = logging.getLogger("spotguard.providers")

#: S3's limits: keys in one DeleteObjects, and in one page of a listing.
_BATCH = 1000


class _S3Body:
    """A buffer in the form that boto3 takes. boto3 never reads it: `_carry` hands the buffer itself to the transport."""

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Return 0, the start: botocore repeats a request when it learns the bucket's region."""
        return 0

    def tell(self) -> int:
        return 0

    def read(self, size: int = -1) -> bytes:
        raise AssertionError("nobody reads this: a checksum is given, and payloads are not signed")


class S3Store:
    """A `BlobStore` in a bucket."""

    def __init__(self, location: Location) -> None:
        self.url = location.url
        self.parallel = CONNECTIONS
        self._at = location
        self._link = Transport(location.options.get("ca") or os.environ.get("AWS_CA_BUNDLE"))
        self._session = S3Session(location, self._carry)
        self._put_options: dict[str, str] = {}
        self._all_options: dict[str, str] = {}
        if "sse" in location.options:
            self._put_options["ServerSideEncryption"] = location.options["sse"]
        if "kms-key-id" in location.options:
            self._put_options.setdefault("ServerSideEncryption", "aws:kms")
            self._put_options["SSEKMSKeyId"] = location.options["kms-key-id"]
        if (pays := location.options.get("requester-pays", "false")) not in ("true", "false"):
            raise UsageError(f"store {self.url!r}: requester-pays={pays} is neither true nor false")
        if pays == "true":
            self._all_options["RequestPayer"] = "requester"
        #: Whether to send DeleteObjects; False after the service has refused it and done single deletes.
        self._batches = True
        #: Whether the service tells an object's CRC32; None before the first look.
        self._checksums: bool | None = None

    def warm(self, *, timeout: float | None = None) -> None:
        """Fetch lasting credentials, and open this thread's connection with a request for an object that does not exist."""
        doing, name = f"reach {self.url}", self._at.key("spotguard-warm")
        with within(timeout), answered(doing):
            self._session.freshen()
            try:
                # Not a HEAD: its answer has no body, and so does not tell why the credentials are refused.
                answer = self._object(doing, name)
            except NotFoundError:
                return
            except ClientError as error:
                # Without the permission to list, S3 answers "denied" for a missing object.
                if code(error) not in ("NoSuchKey", "AccessDenied"):
                    raise
                return
            answer["Body"].close()
            raise foreign(
                doing, f"an object that does not exist is there ({_meta(answer)['HTTPStatusCode']})"
            )

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        """Upload the whole object; the service refuses bytes that do not match this CRC32."""
        self._put(key, data, timeout, crc32, sent)

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """Upload as `put` does, unless the key exists; S3 checks If-None-Match at the end of the upload."""
        return self._put(key, data, timeout, None, None, IfNoneMatch="*")

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Return the whole object."""
        doing = f"get {self._named(check_key(key))}"
        with within(timeout), answered(doing):
            return self._whole(doing, self._at.key(key))

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` from the object's byte `start` on, in one request."""
        doing, view = f"read {self._named(check_key(key))}", buffer.cast("B")
        name = self._at.key(key)
        with within(timeout), answered(doing):
            if not view:
                if name not in self._sizes(doing, name):
                    raise NotFoundError(f"{doing}: it is not listed")
                return
            answer = self._object(doing, name, start, start + len(view))
            if not answer.get("ContentRange", "").startswith(f"bytes {start}-"):
                answer["Body"].close()  # or the rest of it would be read as the next answer
                raise foreign(doing, "a range was asked for, and another came")
            got = fill(answer["Body"], view)
            if got < len(view):
                raise CorruptError(
                    f"{doing}: {start + got} bytes are there, {start + len(view)} were expected"
                )

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in order of keys, page by page."""
        doing, remains = f"list {self._named(check_prefix(prefix))}", remaining(timeout)
        more = ""
        while True:
            with within(remains()), answered(doing):
                objects, more = self._page(doing, self._at.key(prefix), more)
            for info in objects:
                yield ObjectInfo(info.key.removeprefix(self._at.prefix), info.size, info.modified)
            if not more:
                return

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete objects, a thousand with one request if the service knows batches."""
        named, remains = [self._at.key(check_key(key)) for key in keys], remaining(timeout)
        doing = f"delete {self.url}"
        for at in range(0, len(named), _BATCH):
            names = named[at : at + _BATCH]
            with within(remains()), answered(doing):
                unsure = self._delete(doing, names) if self._batches else self._delete_singly(names)
                # By directories: what one batch deletes may have no longer prefix than the whole run.
                listed: set[str] = set()
                for _, some in groupby(sorted(unsure), os.path.dirname):
                    listed.update(self._sizes(doing, os.path.commonprefix([*some])))  # noqa: RUF071 - of characters
                if left := unsure & listed:
                    raise foreign(
                        doing, f"{len(left)} objects are listed after their deletion ({min(left)} …)"
                    )

    def credentials(self) -> Credentials | None:
        """Return the credentials in use, for people."""
        return self._session.credentials()

    def renew_credentials(self, *, timeout: float | None = None) -> None:
        """Ask AWS's chain anew, files and variables included."""
        with within(timeout), answered(f"reach {self.url}"):
            self._session.renew(self._session.client())

    # --- inside ---

    def _put(
        self,
        key: str,
        data: memoryview,
        timeout: float | None,
        crc32: int | None,
        sent: Sent | None,
        **options: str,
    ) -> bool:
        """Upload an object; return whether its bytes are there now, which a condition may have prevented."""
        doing, view = f"put {self._named(check_key(key))}", data.cast("B")
        checksum = zlib.crc32(view) if crc32 is None else crc32
        encoded = base64.b64encode(checksum.to_bytes(4, "big")).decode()
        name = self._at.key(key)
        with within(timeout, sent), answered(doing):
            try:
                answer = self._ask(
                    "put_object",
                    Key=name,
                    Body=_S3Body(view),
                    ChecksumCRC32=encoded,
                    **self._put_options,
                    **options,
                )
            except ClientError as error:
                if status(error) != 412 or not options:
                    raise
                if own(error):
                    return False
                doubting = f"{doing}: the answer (412) has no error of S3's in it"
            else:
                meta = _meta(answer)
                if (
                    meta["HTTPStatusCode"] == 200
                    and answer.get("ETag")
                    and meta["HTTPHeaders"].get("content-length", "0") == "0"
                ):
                    return True
                doubting = f"{doing}: the answer ({meta['HTTPStatusCode']}) is not one to an upload"
            try:
                if options:  # another writer's object may have the same size
                    return self._whole(doubting, name) == view
                self._confirm(doubting, name, len(view), encoded)
            except (NotFoundError, ClientError) as error:
                if isinstance(error, ClientError) and code(error) != "NoSuchKey":
                    raise
                raise foreign(doubting, "no object is there") from error
        return True

    def _confirm(self, doing: str, name: str, size: int, checksum: str) -> None:
        """Look at an object whose put had a doubtful answer: services that leave headers out exist, and so do portals.

        Raises:
            NotFoundError: the object is not there.
            UnavailableError: it has another size or checksum, or another server answers.
        """
        kept = found = None
        if self._checksums is not False:
            try:
                head = self._ask("head_object", Key=name, ChecksumMode="ENABLED")
            except ClientError as error:
                if status(error) != 404:
                    raise
                raise NotFoundError(f"{doing}: it is not there") from error
            kept, found = head.get("ChecksumCRC32"), head.get("ContentLength")
            if kept not in (None, checksum):
                raise foreign(doing, "an object with another checksum is there")
        if kept is None:
            # A HEAD without a checksum may be a page's. No other server makes up a listing.
            found = self._sizes(doing, name).get(name)
        if found is None:
            raise NotFoundError(f"{doing}: it is not listed")
        if found != size:
            raise foreign(doing, f"an object of {found} bytes in place of {size} is there")
        if self._checksums is None:
            log.info("%s answers uploads without an ETag: spotguard looks at each object after it", self.url)
            self._checksums = kept is not None

    def _whole(self, doing: str, name: str) -> bytes:
        """Return all bytes of an object; the listing decides whether a doubtful answer has them."""
        answer = self._object(doing, name)
        if (length := answer.get("ContentLength")) is None:
            answer["Body"].close()
            raise foreign(doing, "the answer has no length")
        data = bytearray(length)
        if fill(answer["Body"], memoryview(data)) < len(data):
            raise CorruptError(f"{doing}: fewer bytes came than were announced")
        page = answer.get("ContentType", "").startswith("text/html")
        if _meta(answer)["HTTPStatusCode"] != 200 or not answer.get("ETag") or page:
            found = self._sizes(doing, name).get(name)
            if found != length:
                raise foreign(doing, f"{length} bytes came, and {found} are listed")
        return bytes(data)

    def _object(
        self, doing: str, name: str, start: int | None = None, stop: int | None = None
    ) -> Mapping[str, Any]:
        """Get an object, or a range of it; the listing decides what an answer without an error of S3's means."""
        wanted = {} if start is None or stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        try:
            return self._ask("get_object", Key=name, **wanted)
        except ClientError as error:
            if own(error) or status(error) not in (404, 410, 416):
                raise
            found = self._sizes(doing, name).get(name)
            if found is None:
                raise NotFoundError(f"{doing}: no such object ({status(error)})") from error
            if status(error) == 416 and found < (stop or 0):
                raise CorruptError(f"{doing}: {found} bytes are there, {stop} were expected") from error
            raise

    def _sizes(self, doing: str, prefix: str) -> dict[str, int]:
        """Return the sizes of all objects whose whole names begin with `prefix`."""
        sizes: dict[str, int] = {}
        more = ""
        while True:
            objects, more = self._page(doing, prefix, more)
            sizes.update((info.key, info.size) for info in objects)
            if not more:
                return sizes

    def _page(self, doing: str, prefix: str, token: str) -> tuple[Sequence[ObjectInfo], str]:
        """Return a page of a listing, with whole names, and the token of the next page, "" for none."""
        more = {"ContinuationToken": token} if token else {}
        page = self._ask("list_objects_v2", Prefix=prefix, **more)
        # Every real listing tells whether there is more. A proxy's page does not, and would look like an empty listing.
        if "IsTruncated" not in page:
            raise foreign(doing, f"the answer ({_meta(page)['HTTPStatusCode']}) is no listing")
        objects = [
            ObjectInfo(
                each["Key"],
                each["Size"],
                each["LastModified"].timestamp() if "LastModified" in each else 0.0,
            )
            for each in page.get("Contents", ())
        ]
        after = page["NextContinuationToken"] if page["IsTruncated"] else ""
        # A cache that ignores queries answers with another listing, or for ever with the same page.
        if not all(info.key.startswith(prefix) for info in objects) or (after and after == token):
            raise foreign(doing, "another listing came than was asked for")
        return objects, after

    def _delete(self, doing: str, names: Sequence[str]) -> set[str]:
        """Delete a batch, and return the names of which the answer says nothing."""
        try:
            answer = self._ask("delete_objects", Delete={"Objects": [{"Key": name} for name in names]})
        except ClientError as error:
            if not without_batch(error):
                raise
            unsure = self._delete_singly(names)
            log.info("%s refuses DeleteObjects (%s): objects are deleted one by one", self.url, status(error))
            self._batches = False
            return unsure
        failures = [(each["Key"], each["Code"], each.get("Message", "")) for each in answer.get("Errors", ())]
        for name, failure, words in failures:
            if failure != "NoSuchKey":
                raise refused(f"delete {name}", failure, words)
        return (
            set(names) - {name for name, *_ in failures} - {each["Key"] for each in answer.get("Deleted", ())}
        )

    def _delete_singly(self, names: Sequence[str]) -> set[str]:
        """Delete one by one, and return the names of which no answer of S3's own says anything."""
        unsure = set(names)
        for name in names:
            try:
                # A header of each answer of S3's; a portal has no reason to make it up.
                if _meta(self._ask("delete_object", Key=name)).get("RequestId"):
                    unsure.discard(name)
            except ClientError as error:
                if status(error) != 404 or code(error) == "NoSuchBucket":
                    raise
                if own(error):
                    unsure.discard(name)
        return unsure

    def _ask(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Send one request; send it again if the credentials were out of date and there are other ones now."""
        client = self._session.client()
        call: Callable[..., Mapping[str, Any]] = getattr(client, operation)
        try:
            return call(Bucket=self._at.bucket, **arguments, **self._all_options)
        except ClientError as error:
            if code(error) not in OUTDATED or not self._session.renew(client):
                raise
        call = getattr(self._session.client(), operation)
        return call(Bucket=self._at.bucket, **arguments, **self._all_options)

    def _carry(self, request: AWSPreparedRequest, **kwargs: Any) -> AWSResponse:
        """Send botocore's request through the transport (botocore's event "before-send")."""
        headers = dict(request.headers.items())
        # Expect would cost a round trip before each body, only to save a body that is refused.
        headers.pop("Expect", None)
        body = request.body.view if isinstance(request.body, _S3Body) else request.body
        response = self._link.carry(request.method, request.url, headers, body)
        answer = AWSResponse(request.url, response.status_code, response.headers, response.raw)
        if not request.stream_output or response.status_code >= 300:
            _ = answer.content  # read now, within this request's time
        return answer

    def _named(self, key: str) -> str:
        return f"s3://{self._at.bucket}/{self._at.key(key)}"


def _meta(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer["ResponseMetadata"]
    return found
