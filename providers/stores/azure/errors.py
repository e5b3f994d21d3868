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
from ..errors import FULL, contained, foreign, leaf, line, network, redirect, unsigned

#: Codes by which the service refuses credentials that it does not recognize.
STRANGER = {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"}

#: Codes that tell more than the status.
_CODES: dict[str, type[StoreError]] = {
    "Md5Mismatch": CorruptError,
    "Crc64Mismatch": CorruptError,
    "InvalidRange": CorruptError,
    "ContainerBeingDeleted": NotFoundError,
    "BlobImmutableDueToPolicy": DeniedError,
    **dict.fromkeys(STRANGER, DeniedError),
    # Conflicts that no wait resolves, unlike most of 409.
    "BlobArchived": StoreError,
    "InvalidBlobType": StoreError,
    "SnapshotsPresent": StoreError,
}

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


class NotAzures(Exception):
    """An answer that Azure did not give, though its status is one of success."""


def azures(headers: Mapping[str, str]) -> bool:
    """Return whether Azure gave an answer with these headers, and no proxy or login page in its place.

    Each answer of the service has x-ms-request-id and x-ms-version (REST API reference: response headers).
    """
    return any(name.lower().startswith("x-ms-") for name in headers)


def refuse_foreign(answer: Any) -> None:
    """Refuse a success that is not Azure's, before the SDK reads it: an empty page would be an empty listing.

    Raises:
        NotAzures: the answer has none of Azure's headers.
    """
    response = answer.http_response
    if response.status_code < 300 and not azures(response.headers):
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        raise NotAzures(f"{response.status_code} {kind}".strip())


@contextmanager
def answers(doing: str, clock: Clock) -> Iterator[None]:
    """Translate every exception of the SDK into the error that its code means, so that none leaves this room."""
    with contained(doing):
        try:
            with network(doing):
                yield
        except NotAzures as error:
            raise foreign(doing, f"the answer is not Azure's ({error})") from error
        except HttpResponseError as error:
            response: Any = error.response
            if response is not None:
                headers, said = response.headers, _said(error)
                raise refusal(doing, response.status_code, code(error), headers, clock, said) from error
            if isinstance(error, ClientAuthenticationError):
                raise DeniedError(
                    f"{doing}: could not get a token ({_attempts(error)}); give this machine an "
                    "identity (a managed identity, az login), or set AZURE_STORAGE_CONNECTION_STRING [SG301]"
                ) from error
            with network(doing):
                raise _below(error) from error
        except AzureError as error:
            with network(doing):
                raise _below(error) from error


def refusal(
    doing: str, status: int, code: str, headers: Mapping[str, str], clock: Clock, said: str = ""
) -> StoreError:
    """Return the error that a failed answer means.

    Args:
        said: the service's own words.
    """
    text = f"{code or 'no code'} ({status}){said and f': {said}'}"
    if 300 <= status < 400:
        return redirect(doing, status, headers.get("Location", ""))
    if not azures(headers):
        return unsigned(doing, "Azure's", text, status)
    kind = _CODES.get(code) or leaf(status)
    advice = _ADVICE.get(code) or (FULL if kind is FullError else "")
    if not advice and (code in STRANGER or status == 401):
        advice = _skew(headers, clock) or _STRANGER_ADVICE
    return kind(f"{doing}: {text}{advice}", code or str(status))


def code(error: HttpResponseError) -> str:
    """Return the service's own error code; "" if it sent none, as in a proxy's 503."""
    value = getattr(error, "error_code", None)
    return str(getattr(value, "value", value) or "")


def _attempts(error: ClientAuthenticationError) -> str:
    """Return what each credential of azure-identity's chain met, without the heading and the link around it."""
    said = str(error.message).partition("Attempted credentials:")
    return line((said[2] or said[0]).partition("To mitigate this issue")[0]) or type(error).__name__


def _said(error: HttpResponseError) -> str:
    """Return the first line of the service's own words. The other ones repeat the request, and may quote its signature."""
    return line(str(error.message).lstrip().partition("\n")[0])


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
