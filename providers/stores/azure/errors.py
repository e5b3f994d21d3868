"""Translation of Azure's answers into errors. The service's own code decides, then the status; never a text.

(Codes: "Common REST API error codes" and "Blob Storage error codes", REST API reference.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from ...clock import Clock
from ...dates import parse_http_date
from ...errors import CorruptError, DeniedError, FullError, NotFoundError, StoreError
from ..errors import FULL, leaf, network

#: Codes that tell more than the status.
_CODES: dict[str, type[StoreError]] = {
    "Md5Mismatch": CorruptError,
    "Crc64Mismatch": CorruptError,
    "InvalidRange": CorruptError,
    "ContainerBeingDeleted": NotFoundError,
    "BlobImmutableDueToPolicy": DeniedError,
    # Conflicts that no wait resolves, unlike most of 409.
    "BlobArchived": StoreError,
    "InvalidBlobType": StoreError,
    "SnapshotsPresent": StoreError,
}

#: Codes by which the service refuses credentials that it does not recognize.
STRANGER = {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"}
#: Codes by which it refuses recognized credentials this request only. (For other codes, no permission is known.)
NOT_THIS = {"AuthorizationPermissionMismatch", "AuthorizationResourceTypeMismatch"}

_ROLE = "; give this identity the role Storage Blob Data Contributor on the container, or the SAS the permissions racwdl [SG302]"
_ADVICE = {
    "AuthorizationPermissionMismatch": _ROLE,
    "AuthorizationResourceTypeMismatch": _ROLE,
    "InsufficientAccountPermissions": _ROLE,
    "AuthorizationFailure": "; let this machine through the account's network rules, and check the account's key [SG302]",
    "KeyBasedAuthenticationNotPermitted": "; this account takes no keys: unset them, so that the machine's identity is used",
    "ContainerNotFound": "; there is no such container in this account: make it, or correct the URL [SG303]",
    "ContainerBeingDeleted": "; somebody deletes this container: use another",
    "InvalidHeaderValue": "; an emulator may know older versions only: start Azurite with --skipApiVersionCheck",
}
_STRANGER_ADVICE = (
    "; the key, SAS or token is not one of this account, or is out of date: give a new one [SG301]"
)

#: Seconds between this machine's clock and the store's from which the message names the clock. (Azure refuses at 15 min; the
#: start of a token's validity tolerates 5.)
_SKEW = 300.0


@contextmanager
def answers(doing: str, clock: Clock) -> Iterator[None]:
    """Translate every exception of the SDK into the error that its code means, so that none leaves this room."""
    try:
        with network(doing):
            yield
    except HttpResponseError as error:
        response: Any = error.response
        if response is not None:
            raise refusal(doing, response.status_code, code(error), response.headers, clock) from error
        if isinstance(error, ClientAuthenticationError):
            raise DeniedError(
                f"{doing}: no token is to be had ({type(error).__name__}); give this machine an identity (a managed "
                "identity, az login), or set AZURE_STORAGE_CONNECTION_STRING [SG301]"
            ) from error
        with network(doing):
            raise _below(error) from error
    except AzureError as error:
        with network(doing):
            raise _below(error) from error


@contextmanager
def readable(doing: str) -> Iterator[None]:
    """Translate errors from parsing an answer: the SDK meets a foreign answer, such as a proxy's page, with any exception."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"{doing}: the answer is none of Azure's ({type(error).__name__}): look at the endpoint, and at proxies before it"
        ) from error


def refusal(doing: str, status: int, code: str, headers: Mapping[str, str], clock: Clock) -> StoreError:
    """Return the error that a failed answer means."""
    kind = _CODES.get(code) or leaf(status)
    advice = _ADVICE.get(code) or (FULL if kind is FullError else "")
    if not advice and (code in STRANGER or status == 401):
        advice = _skew(headers, clock) or _STRANGER_ADVICE
    return kind(f"{doing}: {code or 'no code'} ({status}){advice}")


def code(error: HttpResponseError) -> str:
    """Return the service's own error code; "" if it sent none, as in a proxy's 503."""
    value = getattr(error, "error_code", None)
    return str(getattr(value, "value", value) or "")


def _below(error: AzureError) -> BaseException:
    """Return the error beneath the SDK's; for an unreadable answer, a connection error, since it was cut or damaged."""
    inner = error.inner_exception
    while isinstance(inner, AzureError):
        inner = inner.inner_exception
    return inner if isinstance(inner, OSError) else ConnectionError(type(error).__name__)


def _skew(headers: Mapping[str, str], clock: Clock) -> str:
    theirs = parse_http_date(headers.get("Date"))
    if theirs is None:
        return ""  # a proxy's answer without a date tells nothing about clocks
    ahead = clock.time() - theirs
    if abs(ahead) < _SKEW:
        return ""
    return (
        f"; this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the store's: "
        "set it (chrony, timedatectl set-ntp true) [SG304]"
    )
