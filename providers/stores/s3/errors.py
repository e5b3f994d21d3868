"""Translation of S3's answers, and of AWS's credential failures, into errors: by code and status, never by text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ProfileNotFound,
)
from botocore.exceptions import ConnectionError as NoConnectionError

from ...errors import (
    CorruptError,
    DeniedError,
    FullError,
    MisconfiguredError,
    NotFoundError,
    NotSupportedError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from ..errors import FULL, contained, foreign, leaf, line, network, redirect, unsigned
from ..tls import SettingMistake, check_certificates, mistake

#: Codes of refused credentials that newer ones may replace. Some services answer them with 400.
OUTDATED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "InvalidTokenId",
    "RequestExpired",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
}

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
    "NotImplemented": NotSupportedError,
    "RequestTimeTooSkewed": DeniedError,
    **dict.fromkeys(OUTDATED, DeniedError),
}

#: Codes of services that know DeleteObjects in part: of some, with MD5 as its only checksum.
_NO_BATCH = {"NotImplemented", "MissingContentMD5", "InvalidRequest"}

_ADVICE = {
    "RequestTimeTooSkewed": "; this machine's clock is wrong: set it (chrony, timedatectl set-ntp true) [SG304]",
    "AuthorizationHeaderMalformed": "; the bucket may be in another region: add it, as in s3://bucket/prefix?region=eu-west-1",
    "PermanentRedirect": "; the bucket is in another region: add it, as in s3://bucket/prefix?region=eu-west-1",
    "NoSuchBucket": "; there is no such bucket: make it, or correct the URL [SG303]",
    "AccessDenied": "; allow s3:PutObject, s3:GetObject and s3:DeleteObject on the prefix and s3:ListBucket on the bucket [SG302]",
}
_TRUSTING = "; name a certificate to trust in AWS_CA_BUNDLE [SG306]"


@contextmanager
def answered(doing: str) -> Iterator[None]:
    """Translate every exception of botocore into the error that its code means, so that none leaves this room."""
    with contained(doing):
        try:
            with network(doing):
                yield
        except ClientError as error:
            raise _refusal(doing, error) from error
        except (HTTPClientError, IncompleteReadError) as error:
            raise UnavailableError(f"{doing}: {type(error).__name__}: {error}") from error
        except BotoCoreError as error:
            raise StoreError(f"{doing}: {type(error).__name__}: {error}") from error


@contextmanager
def identified(url: str) -> Iterator[None]:
    """Translate failures to get credentials: botocore's own HTTP asks for them, for example from STS."""
    doing = f"get AWS credentials for {url}"
    with contained(doing):
        try:
            yield
        except (NoConnectionError, HTTPClientError) as error:
            if (advice := mistake(error, _TRUSTING) or _unreadable()) is not None:
                raise MisconfiguredError(f"{doing}: {advice}") from error
            raise UnavailableError(f"{doing}: {type(error).__name__}: {error}") from error
        except ClientError as error:
            refusal = _refusal(doing, error)
            if refusal.transient or isinstance(refusal, MisconfiguredError):
                raise refusal from error
            if not own(error):
                raise foreign(doing, f"the answer ({status(error)}) has no error of AWS's in it") from error
            raise DeniedError(
                f"{doing}: {_said(error)}; give the machine or the job a role that it may assume [SG301]"
            ) from error
        except ProfileNotFound as error:
            raise MisconfiguredError(f"{doing}: {error}; correct profile= or AWS_PROFILE [SG301]") from error
        except BotoCoreError as error:
            raise DeniedError(f"{doing}: {type(error).__name__}: {error} [SG301]") from error


def _unreadable() -> str | None:
    """Return what is wrong with botocore's own certificates; it says of them that there was an unhandled exception."""
    try:
        if path := os.environ.get("AWS_CA_BUNDLE"):
            check_certificates(path)
    except SettingMistake as error:
        return str(error)
    return None


def code(error: ClientError) -> str:
    """Return the service's own code; "" if the answer has none, as a proxy's page."""
    found = str(_error(error).get("Code") or "")
    return "" if found.isdigit() else found  # botocore puts the status in its place


def status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def own(error: ClientError) -> bool:
    """Return whether the service itself has answered, by a code of its own; HEAD's answers never have one."""
    return code(error) != ""


def without_batch(error: ClientError) -> bool:
    """Return whether single deletes may work although DeleteObjects was refused."""
    known, number = code(error), status(error)
    # A policy may forbid the one request only, and a firewall knows none of S3's codes.
    return number in (405, 501) or known in _NO_BATCH or (number == 403 and known in ("", "AccessDenied"))


def refused(doing: str, code: str, words: str) -> StoreError:
    """Return the error for one key of a batch, which has a code but no status of its own."""
    kind = _CODES.get(code) or {"AccessDenied": DeniedError, "NoSuchBucket": NotFoundError}.get(
        code, UnavailableError
    )
    return kind(f"{doing}: {code}{f': {line(words)}' if words else ''}{_ADVICE.get(code, '')}", code)


def _refusal(doing: str, error: ClientError) -> StoreError:
    known, number = code(error), status(error)
    if 300 <= number < 400:
        place = error.response["ResponseMetadata"].get("HTTPHeaders", {}).get("location")
        moved = redirect(doing, number, str(place or _error(error).get("Endpoint") or ""))
        return type(moved)(f"{moved}{_ADVICE.get(known, '')}", known or moved.code)
    if not own(error):
        return unsigned(doing, "S3's", _said(error), number)
    kind = _CODES.get(known) or leaf(number)
    advice = _ADVICE.get(known) or (FULL if kind is FullError else "")
    return kind(f"{doing}: {_said(error)}{advice}", known)


def _said(error: ClientError) -> str:
    """Return the service's own words: its code, the status and its message."""
    words = line(str(_error(error).get("Message") or ""))
    return f"{code(error) or 'no code'} ({status(error)}){f': {words}' if words else ''}"


def _error(error: ClientError) -> Mapping[str, Any]:
    found = error.response.get("Error")
    return found if isinstance(found, Mapping) else {}
