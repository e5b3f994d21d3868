"""A cached Azure token: it is fetched ahead of time, and never while bytes are sent (law 8).

By itself the SDK would fetch a token during a request, in the old token's last five minutes. Here each token
claims to end now. So the SDK asks this class before every request, and gets the cached token. If the metadata service is gone,
azure-identity retries for minutes. So a separate thread asks it, and no caller waits for that thread beyond its own timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError

from ...clock import Clock
from ..token import RenewalTurn

log = logging.getLogger("spotguard")

#: The scope of a token for a storage account's data.
SCOPE = "https://storage.azure.com/.default"

#: Seconds for which a token is new: if a request with a new token is refused, the token is not the reason.
_NEW = 30.0
#: Seconds that a request without a timeout of its own waits for a token; seconds that `keep` waits for a newer one.
_PATIENCE, _WHILE = 60.0, 5.0
#: Seconds that a refused request waits for a newer token: a save without a deadline must end within a minute.
_AFTER_REFUSAL = 20.0


class _Asking:
    """One request to the identity, shared by all threads that wait for its answer."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: Exception | None = None


class _Time(threading.local):
    """The time until which the calling thread waits."""

    until: float | None = None


class HeldToken:
    """A `TokenCredential` that caches the token of other credentials.

    Args:
        make: makes a new credential without a cached token; an old credential would return the refused token again.
        clock: the clock for a token's age.
    """

    def __init__(self, make: Callable[[], Any], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: _Asking | None = None
        self._token = ""
        self._got = self._ends = 0.0
        self._turn = RenewalTurn(clock)
        self._time = _Time()

    @contextmanager
    def within(self, timeout: float | None) -> Iterator[None]:
        """Limit every wait for a token that the calling thread makes inside to `timeout` seconds."""
        self._time.until = None if timeout is None else self._clock.monotonic() + timeout
        try:
            yield
        finally:
            self._time.until = None

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return the cached token. With options, the store asked for another one: then a token that is not new is renewed."""
        named = {name: options[name] for name in ("tenant_id", "claims") if options.get(name)}
        if self._left() <= 0 or (named and not self._new()):
            self._ask(named, _PATIENCE)
        with self._lock:
            return AccessToken(self._token, int(self._clock.time()))

    def left(self) -> float | None:
        """Return the seconds that the cached token remains valid; None if there is none."""
        return self._left() if self._token else None

    def keep(self) -> None:
        """Ensure a token that is valid for another quarter of an hour. If none is available, keep a valid one.

        Raises:
            AzureError, TimeoutError: there is no valid token.
        """
        remains = self._left()
        if remains > 0 and not self._turn.take(remains):
            return
        try:
            self._ask({}, _WHILE if remains > 0 else _PATIENCE)
        except (AzureError, TimeoutError) as error:
            if remains <= 0:
                raise
            if self._turn.fails():
                log.warning(
                    "the token for Azure ends in %.0f s, and refreshing it failed (%s): look at the machine's identity",
                    remains,
                    type(error).__name__,
                )

    def renew(self) -> bool:
        """Renew the token after a refusal, and return whether there is another token now.

        A failure to renew is none of the store's: the refusal stays the answer.
        """
        if self._new():
            return False
        before = self._token
        try:
            self._ask({}, _AFTER_REFUSAL)
        except (AzureError, TimeoutError) as error:
            log.debug("the token for Azure is refused, and refreshing it failed: %s", type(error).__name__)
            return False
        return self._token != before

    def _left(self) -> float:
        """Return the seconds that the token remains valid; 0 without a token."""
        with self._lock:
            return self._ends - self._clock.monotonic() if self._token else 0.0

    def _new(self) -> bool:
        with self._lock:
            return bool(self._token) and self._clock.monotonic() - self._got < _NEW

    def _ask(self, options: dict[str, Any], patience: float) -> None:
        with self._lock:
            asking = self._asking
            if asking is None:
                asking = _Asking()
                thread = threading.Thread(
                    target=self._run, args=(asking, options), name="spotguard azure token", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    raise TimeoutError("no thread can be started to ask the machine's identity") from error
                self._asking = asking  # only after the thread has started, or no thread would ever answer it
        until = self._time.until
        if until is not None:
            patience = min(patience, until - self._clock.monotonic())
        if not self._clock.wait(asking.done, patience):
            raise TimeoutError("the machine's identity does not answer")
        if asking.error is not None:
            raise asking.error

    def _run(self, asking: _Asking, options: dict[str, Any]) -> None:
        try:
            with closing(self._make()) as credential:
                token = credential.get_token(SCOPE, **options)
            if not token.token or not isinstance(token.token, str):
                raise ClientAuthenticationError("the identity's answer holds no token")
            with self._lock:
                self._got = self._clock.monotonic()
                # Wall seconds become monotonic once, on receipt.
                self._ends = self._got + token.expires_on - self._clock.time()
                self._token = token.token
            self._turn.succeeds()
        except AzureError as error:
            asking.error = error
        except Exception as error:  # noqa: BLE001 - azure-identity takes apart what it did not expect
            asking.error = ClientAuthenticationError(
                f"the identity's answer cannot be read ({type(error).__name__}): a proxy or captive portal may be in between"
            )
        finally:
            with self._lock:
                self._asking = None
            asking.done.set()
