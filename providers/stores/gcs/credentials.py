"""Who we are to Cloud Storage, and over which connections: Google's own chain of credentials, one token for all threads.

google-auth by itself renews a token within the request that is in need of it, 225 s before the end, and fails where the
metadata service does not answer although the old one still holds: in the middle of the last save. Here `freshen` renews
it a quarter of an hour ahead, and a request does so only when nothing is left of the old one.
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
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud import storage

from ...clock import Clock, SystemClock
from ..base import Credentials
from ..http import Transport
from ..url import Location

log = logging.getLogger("spotguard")

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

#: Seconds before a token's end at which `freshen` fetches another; and within which a request does not trust it.
_AHEAD, _LAST = 15 * 60.0, 10.0
#: Seconds until `freshen` asks again: the metadata service gives the same token until five minutes before its end.
_AGAIN = 60.0


#: By the module of google-auth that they are of.
_KINDS = {
    "google.auth.compute_engine.credentials": "the machine's service account",
    "google.oauth2.credentials": "a person's, as gcloud left them",
    "google.oauth2.service_account": "a service account's key file",
    "google.auth.identity_pool": "a workload's identity (identity pool)",
    "google.auth.impersonated_credentials": "a service account taken on",
}


class Token(GoogleCredentials):  # type: ignore[no-untyped-call, misc, unused-ignore]
    """Credentials of any kind, renewed by one thread for all, and only when they must be."""

    def __init__(self, source: Any, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._used = threading.local()
        self._not_before = -math.inf

    def left(self) -> float:
        """Seconds that the token still holds."""
        if self._source.token is None:
            return 0.0
        expiry: datetime | None = self._source.expiry
        if expiry is None:
            return math.inf
        # google-auth writes UTC without saying so.
        return expiry.replace(tzinfo=expiry.tzinfo or UTC).timestamp() - self._clock.time()

    def described(self) -> Credentials:
        """What kind they are, and how long the token holds."""
        left = self.left()
        # A user's token may have come without what renews it; a service account's key and a metadata server always have it.
        renewed = getattr(self._source, "refresh_token", "") is not None
        kind = _KINDS.get(type(self._source).__module__, "credentials of Google's chain")
        return Credentials(kind, None if math.isinf(left) else left, renewed, temporary=not renewed)

    def before_request(self, request: Any, method: str, url: str, headers: dict[str, str]) -> None:
        """Name the token in the headers. (google-auth's own would first renew what lasts for another 225 s.)"""
        self._renew(request)
        self._used.token = self._source.token
        self._source.apply(headers)

    def refresh(self, request: Any) -> None:
        """After 401: fetch another, unless a thread did so since this one's request left."""
        with self._lock:
            if self._source.token == getattr(self._used, "token", None):
                self._source.refresh(request)

    def freshen(self, request: Any) -> None:
        """Fetch another where the end is near. Where that fails, the one that holds is kept.

        Raises:
            GoogleAuthError, OSError: none can be had, and none holds.
        """
        left = self.left()
        if left < _LAST:
            self._renew(request)
        elif (
            left < _AHEAD
            and self._clock.monotonic() >= self._not_before
            and self._lock.acquire(blocking=False)
        ):
            try:
                self._not_before = self._clock.monotonic() + _AGAIN
                self._source.refresh(request)
            except (GoogleAuthError, OSError) as error:
                log.warning("Google's token ends in %.0f s, and a new one cannot be had now: %s", left, error)
            finally:
                self._lock.release()

    def _renew(self, request: Any) -> None:
        """Where none holds: one thread fetches one, and the others wait for it."""
        if self.left() < _LAST:
            with self._lock:
                if self.left() < _LAST:
                    self._source.refresh(request)


class GCSSession:
    """The SDK's client, made when it is first asked for: opening a store sends nothing."""

    def __init__(self, location: Location, clock: Clock | None = None) -> None:
        self._at = location
        self._clock = clock or SystemClock()
        self._link = Transport(location.options.get("ca"))
        self._lock = threading.Lock()
        self._client: Any = None
        self._token: Token | None = None
        tokens = requests.Session()
        tokens.mount("https://", Transport())
        tokens.mount("http://", Transport(proxied=False))
        tokens.max_redirects = 0
        self._request = Request(tokens)

    def client(self) -> Any:
        """The SDK's client.

        Raises:
            GoogleAuthError: there are no credentials.
        """
        client = self._client
        if client is None:
            with self._lock:
                client = self._client = self._client or self._make()
        return client

    def http(self) -> requests.Session:
        """The session under the client: for bodies that the SDK would copy."""
        session: requests.Session = self.client()._http
        return session

    def freshen(self) -> None:
        """Have a token that lasts.

        Raises:
            GoogleAuthError, OSError: none can be had, and none holds.
        """
        self.client()
        if self._token is not None:
            self._token.freshen(self._request)

    def credentials(self) -> Credentials | None:
        """As whom we ask, once `client` was asked; None: as nobody."""
        return None if self._token is None else self._token.described()

    def _make(self) -> Any:
        options = self._at.options
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        endpoint = options.get("endpoint") or emulator
        if endpoint and "://" not in endpoint:
            endpoint = f"http://{endpoint}"  # as other languages' SDKs read the variable
        credentials: Any
        # A token is for Google: not for whoever listens on plain HTTP.
        if emulator or (endpoint and endpoint.startswith("http://")):
            credentials = AnonymousCredentials()  # type: ignore[no-untyped-call, unused-ignore]
        else:
            found, _ = google.auth.default(scopes=[_SCOPE], request=self._request)
            credentials = self._token = Token(found, self._clock)
        # One refresh after a 401, and the request again: what a caller's loop would not do.
        session: requests.Session = AuthorizedSession(  # type: ignore[no-untyped-call, unused-ignore]
            credentials, max_refresh_attempts=1, auth_request=self._request
        )
        session.mount("https://", self._link)
        session.mount("http://", self._link)
        session.max_redirects = 0
        return storage.Client(
            project=options.get("project") or os.environ.get("GOOGLE_CLOUD_PROJECT"),
            credentials=credentials,
            _http=session,
            client_options={"api_endpoint": endpoint.rstrip("/")} if endpoint else None,
        )
