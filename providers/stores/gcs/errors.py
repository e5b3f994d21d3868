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
    MisconfiguredError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from ..errors import FULL, contained, leaf, line, network, redirect, unsigned
from ..tls import causes, mistake
from .evidence import googles

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
    with contained(doing):
        try:
            with network(doing), _directed(doing):
                yield
        except GoogleAPICallError as error:
            refusal = _refused(doing, permission, error)
            refusal.code = next(filter(None, _reasons(error)), str(int(error.code or 0)))
            raise refusal from error
        except GoogleAuthError as error:
            raise _without_token(doing, error) from error


@contextmanager
def _directed(doing: str) -> Iterator[None]:
    """Translate a redirect of the store, or of a service that gives tokens: the sessions follow none."""
    try:
        yield
    except (requests.RequestException, GoogleAuthError) as error:
        for each in causes(error):
            if isinstance(each, requests.TooManyRedirects) and each.response is not None:
                answer = each.response
                raise redirect(doing, answer.status_code, answer.headers.get("Location", "")) from error
        raise


def _refused(doing: str, permission: str, error: GoogleAPICallError) -> StoreError:
    status, said = int(error.code or 0), _said(error)
    reasons = _reasons(error)
    kind = next((_REASONS[reason] for reason in reasons if reason in _REASONS), leaf(status))
    text = f"{doing}: {' '.join([str(status), *reasons])}: {said}"
    if 300 <= status < 400:
        return redirect(doing, status, "")
    if not googles(error.response):
        return unsigned(doing, "Google's", f"{status}: {said}", status)
    if kind is DeniedError and status == 401:
        return DeniedError(
            f"{text}; Google does not take this job's credentials: look at its service account, and at this machine's clock [SG301]"
        )
    if kind is DeniedError:
        return DeniedError(
            f"{text}; the job's account needs {permission}: give it roles/storage.objectUser on the bucket [SG302]"
        )
    if kind is NotFoundError and permission in (CREATE, LIST):
        return NotFoundError(f"{text}; there is no such bucket: make it, or correct the URL [SG303]")
    # A checksum that differs from the bytes gives 400 "invalid". No other part of an upload that spotguard chooses can
    # cause it: object names, and the name of a KMS key, were checked before.
    if status == 400 and permission == CREATE and "invalid" in reasons:
        return CorruptError(f"{text}; other bytes arrived than were sent")
    return kind(f"{text}{FULL if kind is FullError else ''}")


def _reasons(error: GoogleAPICallError) -> list[str]:
    return [str(each.get("reason", "")) for each in error.errors if isinstance(each, dict)]


def _without_token(doing: str, error: GoogleAuthError) -> StoreError:
    said = line(str(error))
    if (advice := mistake(error, "REQUESTS_CA_BUNDLE names certificates to trust")) is not None:
        return MisconfiguredError(f"{doing}: no token can be had: {advice}")
    if isinstance(error, DefaultCredentialsError):
        return DeniedError(
            f"{doing}: no Google credentials found ({said}); give the machine a service account, name a key file in "
            "GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login [SG301]"
        )
    if error.retryable or any(isinstance(each, OSError) for each in causes(error)):
        return UnavailableError(f"{doing}: no token can be had now: {said} [SG301]")
    return DeniedError(
        f"{doing}: Google gives no token for these credentials: {said}; look at the service account, and at "
        "this machine's clock [SG301]"
    )


def _said(error: GoogleAPICallError) -> str:
    """Return the service's own words, without the method and the URL that the SDK writes before them."""
    asked = getattr(error.response, "request", None)
    return line(str(error.message).rpartition(f"{asked.url}: " if asked is not None else "")[2])
