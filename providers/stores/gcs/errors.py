"""What Cloud Storage's answers and Google's failures to identify us mean to us: a status and a reason, never a text."""

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
from ..errors import leaf, network

#: Where the reason says more than the status.
#: (https://cloud.google.com/storage/docs/json_api/v1/status-codes)
_REASONS: dict[str, type[StoreError]] = {
    "rateLimitExceeded": ThrottledError,
    "userRateLimitExceeded": ThrottledError,
    "quotaExceeded": FullError,
}

#: The permissions that a store needs, as IAM calls them. (https://cloud.google.com/storage/docs/access-control/iam-json)
CREATE, GET, LIST, DELETE = (f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete"))


@contextmanager
def answered(doing: str, permission: str) -> Iterator[None]:
    """Every failure of a request becomes one of ours.

    Args:
        doing: with the object's whole name, for the message.
        permission: what the request needs, for whoever lacks it.
    """
    try:
        with network(doing):
            yield
    except GoogleAPICallError as error:
        raise _refused(doing, permission, error) from error
    except DefaultCredentialsError as error:
        raise DeniedError(
            f"{doing}: no Google credentials are to be found ({_line(error)}); give the machine a service account, name a key file in "
            "GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login"
        ) from error
    except GoogleAuthError as error:
        if error.retryable or _is_networks(error):
            raise UnavailableError(f"{doing}: no token can be had now: {_line(error)}") from error
        raise DeniedError(
            f"{doing}: Google gives no token for these credentials: {_line(error)}; look at the service account, and at "
            "this machine's clock"
        ) from error


def _refused(doing: str, permission: str, error: GoogleAPICallError) -> StoreError:
    status = int(error.code or 0)
    reasons = [str(each.get("reason", "")) for each in error.errors if isinstance(each, dict)]
    kind = next((_REASONS[reason] for reason in reasons if reason in _REASONS), leaf(status))
    said = f"{doing}: {' '.join([str(status), *reasons])}"
    if kind is DeniedError and status == 401:
        return DeniedError(
            f"{said}; Google does not take this job's credentials: look at its service account, and at this machine's clock"
        )
    if kind is DeniedError:
        return DeniedError(
            f"{said}: {_line(error.message)}; the job's account needs {permission}: give it roles/storage.objectUser on the bucket"
        )
    if kind is NotFoundError and permission in (CREATE, LIST):
        return NotFoundError(f"{said}; there is no such bucket: make it, or correct the URL")
    # A sum that differs from the bytes is 400 "invalid". Nothing else in an upload that is ours to choose can be so:
    # names, and the name of a key of KMS, were checked before.
    if status == 400 and permission == CREATE and "invalid" in reasons:
        return CorruptError(f"{said}: other bytes arrived than were sent: {_line(error.message)}")
    return kind(f"{said}: {_line(error.message)}")


def _is_networks(error: BaseException) -> bool:
    """Whether a failure of the network lies behind it: google-auth wraps one in another (`raise … from`)."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (requests.RequestException, OSError)):
            return True
        cause = cause.__cause__
    return False


def _line(said: object) -> str:
    return " ".join(str(said).split())[:300]
