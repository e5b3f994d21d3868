"""Credentials and connections for Cloud Storage: Google's own chain of credentials, and one token for all threads.

By itself google-auth renews a token during the request that needs it, 225 s before its end. If the metadata service does not
answer then, google-auth fails although the old token is still valid: in the middle of the last save. Here `freshen` renews
the token a quarter of an hour ahead. A request renews it only when the old one has run out.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from datetime import UTC, datetime
from typing import Any

import google.auth
import requests
from google.auth.credentials import AnonymousCredentials
from google.auth.credentials import Credentials as GoogleCredentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud import storage

from ...clock import Clock, SystemClock
from ..base import Credentials
from ..http import Transport
from ..token import RenewalTurn, SharedAttempt
from ..url import Location

log = logging.getLogger("spotguard")

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

#: Seconds before a token's end at which a request distrusts it.
_LAST = 10.0

#: Kinds of credentials, by the module of google-auth that defines them.
_KINDS = {
    "google.auth.compute_engine.credentials": "the machine's service account",
    "google.oauth2.credentials": "a person's, as gcloud left them",
    "google.oauth2.service_account": "a service account's key file",
    "google.auth.identity_pool": "a workload's identity (identity pool)",
    "google.auth.impersonated_credentials": "a service account taken on",
}


class Token(GoogleCredentials):  # type: ignore[no-untyped-call, misc, unused-ignore]
    """Credentials of any kind. One thread renews them for all threads, and only when necessary."""

    def __init__(self, source: Any, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._source = source
        self._clock = clock
        self._attempt = SharedAttempt()
        self._used = threading.local()
        self._turn = RenewalTurn(clock)

    def left(self) -> float:
        """Return the seconds that the token remains valid."""
        if self._source.token is None:
            return 0.0
        expiry: datetime | None = self._source.expiry
        if expiry is None:
            return math.inf
        # google-auth's times are UTC without a zone.
        return expiry.replace(tzinfo=expiry.tzinfo or UTC).timestamp() - self._clock.time()

    def described(self) -> Credentials:
        """Return the kind of the credentials, and how long the token is valid."""
        left = self.left()
        # A user's token may have come without a refresh token; a service account's key and a metadata server can always renew.
        renewed = getattr(self._source, "refresh_token", "") is not None
        kind = _KINDS.get(type(self._source).__module__, "credentials of Google's chain")
        return Credentials(kind, None if math.isinf(left) else left, renewed, temporary=not renewed)

    def before_request(self, request: Any, method: str, url: str, headers: dict[str, str]) -> None:
        """Put the token into the headers. (google-auth's own method would first renew a token within 225 s of its end.)"""
        self._renew(request)
        self._used.token = self._source.token
        self._source.apply(headers)

    def refresh(self, request: Any) -> None:
        """Fetch another token after a 401, unless a thread has fetched one since this thread's request was sent.

        If that fails, the old one stays, so that the refusal is the answer, and no failure of the network.
        """
        used = getattr(self._used, "token", None)
        try:
            self._attempt.make(lambda: self._source.token == used, lambda: self._fetch(request))
        except (GoogleAuthError, OSError) as error:
            log.debug("Google's token is refused, and refreshing it failed: %s", error)

    def renew(self, request: Any) -> None:
        """Fetch another token, although the present one may be valid."""
        self._attempt.make(lambda: True, lambda: self._fetch(request))

    def freshen(self, request: Any) -> None:
        """Fetch another token if the end is near. If that fails, keep a valid one.

        Raises:
            GoogleAuthError, OSError: no token is available, and none is valid.
        """
        left = self.left()
        if left < _LAST:
            self._renew(request)
        elif self._turn.take(left):
            try:
                self._attempt.make(lambda: self.left() <= left, lambda: self._fetch(request))
            except (GoogleAuthError, OSError) as error:
                if self._turn.fails():
                    log.warning("Google's token ends in %.0f s, and refreshing it failed: %s", left, error)

    def _renew(self, request: Any) -> None:
        """Fetch a token if none is valid. One thread fetches it, and the others wait for it."""
        self._attempt.make(lambda: self.left() < _LAST, lambda: self._fetch(request))

    def _fetch(self, request: Any) -> None:
        """Fetch a token, and keep the one before if the answer holds none.

        Raises:
            GoogleAuthError, OSError: no token came.
        """
        before, ends = self._source.token, self._source.expiry
        try:
            self._source.refresh(request)
            why = "" if self._source.token and isinstance(self._source.token, str) else "no token in it"
        except (GoogleAuthError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - google-auth takes apart what it did not expect
            why = type(error).__name__
        if not why:
            self._turn.succeeds()
        else:
            self._source.token, self._source.expiry = before, ends
            raise TransportError(  # type: ignore[no-untyped-call, unused-ignore]
                f"the answer is none of a token service ({why}): a proxy or captive portal may be in between",
                retryable=True,
            )


class GCSSession:
    """The SDK's client, made at its first use: opening a store sends nothing."""

    def __init__(self, location: Location, clock: Clock | None = None) -> None:
        self._at = location
        self._clock = clock or SystemClock()
        self._link = Transport(location.options.get("ca"))
        self._attempt = SharedAttempt()
        self._client: Any = None
        self._token: Token | None = None
        tokens = requests.Session()
        tokens.mount("https://", Transport())
        tokens.mount("http://", Transport(proxied=False))
        tokens.max_redirects = 0
        self._request = Request(tokens)

    def client(self) -> Any:
        """Return the SDK's client.

        Raises:
            GoogleAuthError: there are no credentials.
        """
        self._attempt.make(lambda: self._client is None, self._make)
        return self._client

    def http(self) -> requests.Session:
        """Return the session below the client, for bodies that the SDK would copy."""
        session: requests.Session = self.client()._http
        return session

    def freshen(self) -> None:
        """Ensure a token that lasts.

        Raises:
            GoogleAuthError, OSError: no token is available, and none is valid.
        """
        self.client()
        if self._token is not None:
            self._token.freshen(self._request)

    def renew(self) -> None:
        """Fetch another token.

        Raises:
            GoogleAuthError, OSError: no token is available.
        """
        self.client()
        if self._token is not None:
            self._token.renew(self._request)

    def credentials(self) -> Credentials | None:
        """Return the credentials in use, after the first `client`; None for anonymous requests."""
        return None if self._token is None else self._token.described()

    def _make(self) -> None:
        # google-auth warns of each try of a lost metadata service. Without logging set up, that goes to stderr.
        words = logging.getLogger("google")
        if not words.handlers:
            words.addHandler(logging.NullHandler())
        options = self._at.options
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        endpoint = options.get("endpoint") or emulator
        if endpoint and "://" not in endpoint:
            endpoint = f"http://{endpoint}"  # SDKs of other languages read the variable like this
        credentials: Any
        # A token is for Google only, never for a listener on plain HTTP.
        if emulator or (endpoint and endpoint.startswith("http://")):
            credentials = AnonymousCredentials()  # type: ignore[no-untyped-call, unused-ignore]
        else:
            credential, _ = google.auth.default(scopes=[_SCOPE], request=self._request)
            credentials = self._token = Token(credential, self._clock)
        # One renewal after a 401, then the request again: a caller's retry loop would not do that.
        session: requests.Session = AuthorizedSession(  # type: ignore[no-untyped-call, unused-ignore]
            credentials, max_refresh_attempts=0 if self._token is None else 1, auth_request=self._request
        )
        session.mount("https://", self._link)
        session.mount("http://", self._link)
        session.max_redirects = 0
        self._client = storage.Client(
            project=options.get("project") or os.environ.get("GOOGLE_CLOUD_PROJECT"),
            credentials=credentials,
            _http=session,
            client_options={"api_endpoint": endpoint.rstrip("/")} if endpoint else None,
        )
