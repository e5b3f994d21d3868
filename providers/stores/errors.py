"""Translation of a blob store's answers into errors, by the status or by the failure to get one. Never by a text."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import requests
import urllib3
from urllib3.util.ssl_match_hostname import CertificateError

from ..errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)

_LEAVES: dict[int, type[StoreError]] = {
    HTTPStatus.UNAUTHORIZED: DeniedError,
    HTTPStatus.FORBIDDEN: DeniedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.REQUEST_TIMEOUT: UnavailableError,
    # Another writer of the same key at the same time: S3's ConditionalRequestConflict, Azure's lease and copy states.
    HTTPStatus.CONFLICT: UnavailableError,
    HTTPStatus.GONE: NotFoundError,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: CorruptError,
    HTTPStatus.TOO_MANY_REQUESTS: ThrottledError,
    # "SlowDown", "ServerBusy": all three clouds use 503 to ask clients to come back later.
    HTTPStatus.SERVICE_UNAVAILABLE: ThrottledError,
    HTTPStatus.INSUFFICIENT_STORAGE: FullError,
}

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
        DeniedError: the server's certificate is not trusted, and a retry will not change that.
    """
    try:
        yield
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        inner = _inner(error)
        if untrusted(error):
            raise DeniedError(
                f"{doing}: {inner}; the option ca=FILE in the store's URL names a certificate to trust [SG306]"
            ) from error
        raise UnavailableError(f"{doing}: {type(inner).__name__}: {inner}") from error


def untrusted(error: BaseException) -> bool:
    """Return whether the cause is a certificate.

    The outermost type tells nothing. Over TLS a broken connection is an `ssl.SSLError` as well, and urllib3, `requests` and
    botocore wrap each of them in a type of their own.
    """
    met: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (ssl.SSLCertVerificationError, CertificateError)):
            return True
        met.append(each)
        behind = (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
        waiting += [
            one for one in behind if isinstance(one, BaseException) and all(one is not old for old in met)
        ]
    return False


def _inner(error: BaseException) -> BaseException:
    """Return the actual error: `requests` and urllib3 wrap it in a text about retries, of which there were none."""
    wrapped = error.args[0] if error.args else None
    inner = wrapped.reason if isinstance(wrapped, urllib3.exceptions.MaxRetryError) else None
    return inner or error
