"""Translation of a blob store's answers into errors, by the status or by the failure to get one. Never by a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import requests
import urllib3

from ..errors import (
    CorruptError,
    DeniedError,
    FullError,
    MisconfiguredError,
    NotFoundError,
    NotSupportedError,
    SpotguardError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from .tls import mistake
from .url import shown

_LEAVES: dict[int, type[StoreError]] = {
    HTTPStatus.UNAUTHORIZED: DeniedError,
    HTTPStatus.FORBIDDEN: DeniedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.METHOD_NOT_ALLOWED: NotSupportedError,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: MisconfiguredError,
    HTTPStatus.REQUEST_TIMEOUT: UnavailableError,
    # Another writer of the same key at the same time: S3's ConditionalRequestConflict, Azure's lease and copy states.
    HTTPStatus.CONFLICT: UnavailableError,
    HTTPStatus.GONE: NotFoundError,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: CorruptError,
    HTTPStatus.TOO_MANY_REQUESTS: ThrottledError,
    # An answer, not an outage: no retry teaches a service a request.
    HTTPStatus.NOT_IMPLEMENTED: NotSupportedError,
    # "SlowDown", "ServerBusy": all three clouds use 503 to ask clients to come back later.
    HTTPStatus.SERVICE_UNAVAILABLE: ThrottledError,
    HTTPStatus.INSUFFICIENT_STORAGE: FullError,
}

#: Statuses that tell something of an object: that it is not there, that it is, that it ends earlier. Only the service may.
_TELLING = {404, 409, 410, 412, 416}

#: The advice of a full store, as the end of a message.
FULL = "; delete what is not needed there, or raise its quota [SG312]"


def leaf(status: int) -> type[StoreError]:
    """Return the error that a status means, for answers whose own code tells no more."""
    known = _LEAVES.get(status)
    if known is not None:
        return known
    return UnavailableError if status >= 500 else StoreError


@contextmanager
def network(doing: str) -> Iterator[None]:
    """Translate failures below HTTP into `UnavailableError`: a retry may work.

    Raises:
        MisconfiguredError: the endpoint or the certificates are set wrongly, and a retry will not change that.
    """
    try:
        yield
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        if (advice := mistake(error)) is not None:
            raise MisconfiguredError(f"{doing}: {advice}") from error
        inner = _inner(error)
        raise UnavailableError(f"{doing}: {type(inner).__name__}: {inner}") from error


@contextmanager
def contained(doing: str) -> Iterator[None]:
    """Let no exception of an SDK out, whatever a hostile answer made of it; enter it outside of all other translation.

    Memory that ends is this process's own trouble: SDKs wrap it, and another try would hide it. (Recursion that is too deep is the
    answer's doing: requests begin on a thread with an empty stack.)
    """
    try:
        yield
    except Exception as error:
        at: BaseException | None = error
        while at is not None:
            if isinstance(at, MemoryError):
                raise at from None
            at = at.__cause__ or at.__context__
        if isinstance(error, SpotguardError):
            raise
        raise foreign(
            doing, f"the answer cannot be read ({type(error).__name__}: {line(str(error))})"
        ) from error


def foreign(doing: str, answer: str) -> UnavailableError:
    """Return the error for an answer that is not the store's own, such as a page of a captive portal.

    It is transient: a proxy may let the next request through.
    """
    return UnavailableError(
        f"{doing}: {answer}, so another server answers in the store's place: look at the endpoint, and at proxies and "
        "captive portals before it [SG316]"
    )


def unsigned(doing: str, whose: str, said: str, status: int) -> StoreError:
    """Return the error for a failed answer that shows no sign of the service: its status decides, if it may.

    Args:
        doing: the request, for the message.
        whose: the service whose answer it should be, as "Azure's".
        said: what the answer says, for the message.
        status: the answer's.
    """
    stranger = foreign(doing, f"the answer is not {whose} ({said})")
    if status < 300 or status in _TELLING:
        return stranger
    return leaf(status)(str(stranger), str(status))


def redirect(doing: str, status: int, place: str) -> StoreError:
    """Return the error for a redirect, which spotguard never follows: requests are signed for one host.

    Args:
        doing: the request, for the message.
        status: one of 300 to 399.
        place: where the answer sends the client; "" if it does not say.
    """
    settled = status in (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.PERMANENT_REDIRECT)
    # A query may hold a token.
    return (MisconfiguredError if settled else UnavailableError)(
        f"{doing}: the answer ({status}) sends spotguard to {line(shown(place.partition('?')[0])) or 'no place'}, and spotguard "
        "follows no redirect: if that is the store, write it as the endpoint; if not, a proxy or captive portal is in "
        "between [SG316]",
        str(int(status)),
    )


def line(text: str) -> str:
    """Return a text of a server's in one line, cut, for a message."""
    return " ".join(text.split())[:300]


def _inner(error: BaseException) -> BaseException:
    """Return the actual error: `requests` and urllib3 wrap it in a text about retries, of which there were none."""
    wrapped = error.args[0] if error.args else None
    inner = wrapped.reason if isinstance(wrapped, urllib3.exceptions.MaxRetryError) else None
    return inner or error
