"""Translation of Cloud Storage's answers and Google's credential failures into errors: by status and reason, never by text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import requests
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

from ...errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from ..errors import FULL, leaf, network

#: Reasons that tell more than the status.
#: (https://cloud.google.com/storage/docs/json_api/v1/status-codes)
_REASONS: dict[str, type[StoreError]] = {
    "rateLimitExceeded": ThrottledError,
    "userRateLimitExceeded": ThrottledError,
    "quotaExceeded": FullError,
}

#: The permissions that a store needs, by their names in IAM. (https://cloud.google.com/storage/docs/access-control/iam-json)
CREATE, GET, LIST, DELETE = (f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete"))


@contextmanager
def answered(doing: str, permission: str) -> Iterator[None]:
    """Translate every failure of a request into one of spotguard's errors.

    Args:
        doing: the operation with the object's whole name, for the message.
        permission: the permission that the request needs, for users who lack it.
    """
    try:
        with network(doing):
            yield
    except GoogleAPICallError as error:
        raise _refused(doing, permission, error) from error
    except DefaultCredentialsError as error:
        raise DeniedError(
            f"{doing}: no Google credentials are to be found ({_line(error)}); give the machine a service account, name a key file in "
            "GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login [SG301]"
        ) from error
    except GoogleAuthError as error:
        if error.retryable or _is_networks(error):
            raise UnavailableError(f"{doing}: no token can be had now: {_line(error)} [SG301]") from error
        raise DeniedError(
            f"{doing}: Google gives no token for these credentials: {_line(error)}; look at the service account, and at "
            "this machine's clock [SG301]"
        ) from error


def _refused(doing: str, permission: str, error: GoogleAPICallError) -> StoreError:
    status = int(error.code or 0)
    reasons = [str(each.get("reason", "")) for each in error.errors if isinstance(each, dict)]
    kind = next((_REASONS[reason] for reason in reasons if reason in _REASONS), leaf(status))
    text = f"{doing}: {' '.join([str(status), *reasons])}"
    if kind is DeniedError and status == 401:
        return DeniedError(
            f"{text}; Google does not take this job's credentials: look at its service account, and at this machine's clock [SG301]"
        )
    if kind is DeniedError:
        return DeniedError(
            f"{text}: {_line(error.message)}; the job's account needs {permission}: give it roles/storage.objectUser on the bucket [SG302]"
        )
    if kind is NotFoundError and permission in (CREATE, LIST):
        return NotFoundError(f"{text}; there is no such bucket: make it, or correct the URL [SG303]")
    # A checksum that differs from the bytes gives 400 "invalid". No other part of an upload that spotguard chooses can
    # cause it: object names, and the name of a KMS key, were checked before.
    if status == 400 and permission == CREATE and "invalid" in reasons:
        return CorruptError(f"{text}: other bytes arrived than were sent: {_line(error.message)}")
    return kind(f"{text}: {_line(error.message)}{FULL if kind is FullError else ''}")


def _is_networks(error: BaseException) -> bool:
    """Return whether a failure of the network is behind the error: google-auth wraps errors (`raise … from`)."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (requests.RequestException, OSError)):
            return True
        cause = cause.__cause__
    return False


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]
