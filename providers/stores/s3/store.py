"""s3://bucket/prefix through boto3: boto3 finds credentials, signs requests and parses answers, `http` carries the bytes.

Permissions: s3:PutObject, s3:GetObject, s3:DeleteObject on the prefix, s3:ListBucket on the bucket.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from ...errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
    UsageError,
)
from ..base import Credentials, ObjectInfo, Sent, check_key, check_prefix
from ..errors import FULL, leaf, network, untrusted
from ..http import CONNECTIONS, Transport, fill, remaining, within
from ..url import Location
from .credentials import S3Session

T = TypeVar("T")

#: S3's limits: keys in one DeleteObjects, and in one page of a listing.
_BATCH = 1000

#: Codes that tell more than the status. (AWS: "Error responses", Amazon S3 API Reference.)
_CODES: dict[str, type[StoreError]] = {
    "BadDigest": CorruptError,
    "InvalidDigest": CorruptError,
    "XAmzContentChecksumMismatch": CorruptError,
    "XAmzContentSHA256Mismatch": CorruptError,
    "IncompleteBody": UnavailableError,
    "RequestTimeout": UnavailableError,  # a 400: the body stalled
    "ConditionalRequestConflict": UnavailableError,
    "OperationAborted": UnavailableError,
    "SlowDown": ThrottledError,
    "Throttling": ThrottledError,
    "ThrottlingException": ThrottledError,
    "RequestLimitExceeded": ThrottledError,
    "QuotaExceeded": FullError,  # not AWS's: Ceph's, and other services' with quotas
    "XMinioAdminBucketQuotaExceeded": FullError,
    "XMinioStorageFull": FullError,
    "ServiceQuotaExceeded": FullError,
    "ExpiredToken": DeniedError,
    "InvalidToken": DeniedError,
    "TokenRefreshRequired": DeniedError,
    "RequestExpired": DeniedError,
}
#: Codes of refused credentials that newer ones may replace.
_STALE = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "RequestExpired"}

_ADVICE = {
    "RequestTimeTooSkewed": "; this machine's clock is wrong: set it (chrony, timedatectl set-ntp true) [SG304]",
    "AuthorizationHeaderMalformed": "; the bucket may be in another region: add it, as in s3://bucket/prefix?region=eu-west-1",
    "PermanentRedirect": "; the bucket is in another region: add it, as in s3://bucket/prefix?region=eu-west-1",
    "NoSuchBucket": "; there is no such bucket: make it, or correct the URL [SG303]",
    "AccessDenied": "; allow s3:PutObject, s3:GetObject and s3:DeleteObject on the prefix and s3:ListBucket on the bucket [SG302]",
}


_PROXY = "a proxy may be in between"


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

    def warm(self, *, timeout: float | None = None) -> None:
        """Fetch lasting credentials, and open this thread's connection with a request for an object that does not exist."""
        with within(timeout), _mapped(f"reach {self.url}"):
            self._session.freshen()
            try:
                # Not a HEAD: its answer has no body, and so does not tell why the credentials are refused.
                self._ask("get_object", Key=self._at.key("spotguard-warm"))["Body"].close()
            except ClientError as error:
                # Without the permission to list, S3 answers "denied" for a missing object.
                if _code(error) not in ("NoSuchKey", "AccessDenied"):
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
        """Upload the whole object; the service refuses bytes that do not match this CRC32."""
        self._put(key, data, timeout, crc32, sent)

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """Upload as `put` does, unless the key exists; S3 checks If-None-Match at the end of the upload."""
        try:
            self._put(key, data, timeout, None, None, IfNoneMatch="*")
        except _Precondition:
            return False
        return True

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Return the whole object."""
        doing = f"get {self._named(check_key(key))}"
        with within(timeout), _mapped(doing):
            answer = self._ask("get_object", Key=self._at.key(key))
            if (length := answer.get("ContentLength")) is None:
                answer["Body"].close()
                raise UnavailableError(f"{doing}: the answer has no length: {_PROXY}")
            data = bytearray(length)
            if fill(answer["Body"], memoryview(data)) < len(data):
                raise CorruptError(f"{doing}: fewer bytes came than were announced")
            return bytes(data)

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` from the object's byte `start` on, in one request."""
        doing, view = f"read {self._named(check_key(key))}", buffer.cast("B")
        with within(timeout), _mapped(doing):
            if not view:
                self._ask("head_object", Key=self._at.key(key))
                return
            wanted = f"bytes={start}-{start + len(view) - 1}"
            answer = self._ask("get_object", Key=self._at.key(key), Range=wanted)
            if not answer.get("ContentRange", "").startswith(f"bytes {start}-"):
                answer["Body"].close()  # or the rest of it would be read as the next answer
                raise UnavailableError(f"{doing}: a range was asked for, and another came: {_PROXY}")
            got = fill(answer["Body"], view)
            if got < len(view):
                raise CorruptError(
                    f"{doing}: {start + got} bytes are there, {start + len(view)} were expected"
                )

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in order of keys, page by page."""
        doing, remains = f"list {self._named(check_prefix(prefix))}", remaining(timeout)
        more: dict[str, Any] = {}
        while True:
            with within(remains()), _mapped(doing):
                page = self._ask("list_objects_v2", Prefix=self._at.key(prefix), **more)
                objects = [
                    (
                        each["Key"],
                        each["Size"],
                        each["LastModified"].timestamp() if "LastModified" in each else 0.0,
                    )
                    for each in page.get("Contents", ())
                ]
                # Every real listing tells whether there is more. A proxy's page does not, and would look like an empty listing.
                more = {"ContinuationToken": page["NextContinuationToken"]} if page["IsTruncated"] else {}
            for name, size, modified in objects:
                yield ObjectInfo(name.removeprefix(self._at.prefix), size, modified)
            if not more:
                return

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete objects, a thousand with one request."""
        named, remains = [self._at.key(check_key(key)) for key in keys], remaining(timeout)
        for at in range(0, len(named), _BATCH):
            batch, doing = named[at : at + _BATCH], f"delete {self.url}"
            with within(remains()), _mapped(doing):
                request = {"Objects": [{"Key": key} for key in batch], "Quiet": True}
                answer = self._ask("delete_objects", Delete=request)
                failures = [(failed["Key"], failed["Code"]) for failed in answer.get("Errors", ())]
            for key, code in failures:
                if code != "NoSuchKey":
                    raise _CODES.get(code, _by_word(code))(f"delete {key}: {code}{_ADVICE.get(code, '')}")

    def credentials(self) -> Credentials | None:
        """Return the credentials in use, for people."""
        return self._session.credentials()

    # --- inside ---

    def _put(
        self,
        key: str,
        data: memoryview,
        timeout: float | None,
        crc32: int | None,
        sent: Sent | None,
        **options: str,
    ) -> None:
        doing, view = f"put {self._named(check_key(key))}", data.cast("B")
        checksum = zlib.crc32(view) if crc32 is None else crc32
        with within(timeout, sent), _mapped(doing):
            self._ask(
                "put_object",
                Key=self._at.key(key),
                Body=_S3Body(view),
                ChecksumCRC32=base64.b64encode(checksum.to_bytes(4, "big")).decode(),
                **self._put_options,
                **options,
            )

    def _ask(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Send one request; send it again if the credentials were out of date and there are other ones now."""
        client = self._session.client()
        call: Callable[..., Mapping[str, Any]] = getattr(client, operation)
        try:
            return call(Bucket=self._at.bucket, **arguments, **self._all_options)
        except ClientError as error:
            if _code(error) not in _STALE or not self._session.renew(client):
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


class _Precondition(StoreError):
    """The key exists already."""


@contextmanager
def _mapped(doing: str) -> Iterator[None]:
    """Translate every exception of an SDK into the error that its code means, so that none leaves this module."""
    try:
        with network(doing), _identified(doing):
            yield
    except ClientError as error:
        code, status = _code(error), _status(error)
        if status == 412:
            raise _Precondition(f"{doing}: {code} (412)") from error
        kind = _CODES.get(code) or leaf(status)
        advice = _ADVICE.get(code) or (FULL if kind is FullError else "")
        raise kind(f"{doing}: {code} ({status}){advice}") from error
    except (ResponseParserError, KeyError) as error:
        # Not S3's answer, or cut off. (Newer botocore treats a 200 that is not XML as a 500 for S3's operations; older does not.)
        raise UnavailableError(
            f"{doing}: the answer cannot be read ({type(error).__name__}: {error}): {_PROXY}"
        ) from error
    except (HTTPClientError, IncompleteReadError) as error:
        raise UnavailableError(f"{doing}: {type(error).__name__}: {error}") from error
    except (CredentialRetrievalError, PartialCredentialsError) as error:
        raise DeniedError(f"{doing}: {type(error).__name__}: {error}") from error
    except BotoCoreError as error:
        raise StoreError(f"{doing}: {type(error).__name__}: {error}") from error


@contextmanager
def _identified(doing: str) -> Iterator[None]:
    """Translate failures to get credentials: botocore's own HTTP asks for them, for example from STS.

    (Some of its errors are an OSError as well.)
    """
    try:
        yield
    except NoConnectionError as error:
        if untrusted(error):
            raise DeniedError(
                f"{doing}: {error}; name a certificate to trust in AWS_CA_BUNDLE [SG306]"
            ) from error
        raise UnavailableError(f"{doing}: {type(error).__name__}: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _by_word(code: str) -> type[StoreError]:
    """Return the error for one key in a batch, which has a code but no status of its own."""
    return {"AccessDenied": DeniedError, "NoSuchBucket": NotFoundError}.get(code, UnavailableError)
