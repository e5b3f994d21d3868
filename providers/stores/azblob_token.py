"""A token of Azure's that is held: the identity is asked ahead of time, and never while bytes are sent (law 8).

The SDK would ask by itself in the last five minutes of a token, during a request, and a metadata service that is gone costs it
many seconds. So it is told that each token ends now, asks us before every request, and has the one we hold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError

from ..clock import Clock

log = logging.getLogger("spotguard")

#: What a storage account's data wants a token for.
SCOPE = "https://storage.azure.com/.default"

#: Seconds before its end at which a token is renewed, if that can be had.
_AHEAD = 15 * 60.0
#: Seconds in which a token is new: one that is refused then is not the reason.
_NEW = 30.0


class HeldToken:
    """A `TokenCredential` over another one.

    Args:
        make: a new credential, which remembers no token: the old one would give again what was refused.
        clock: for a token's age.
    """

    def __init__(self, make: Callable[[], Any], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._credential: Any = None
        self._token = ""
        self._got = self._ends = 0.0

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """The token that is held. With options the store asked for another: then one that is not new is renewed."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._token or now >= self._ends:
                self._ask(options)
            elif {"tenant_id", "claims"} & options.keys() and now - self._got >= _NEW:
                self._ask(options, anew=True)
            return AccessToken(self._token, int(self._clock.time()))

    def keep(self) -> None:
        """Have a token for another quarter of an hour. Where none is to be had, one that lives is kept.

        Raises:
            AzureError: there is none that lives.
        """
        with self._lock:
            left = self._ends - self._clock.monotonic()
            if self._token and left >= _AHEAD:
                return
            try:
                # A credential's own memory may hold what ends soon, until five minutes before its end.
                self._ask({}, anew=True)
            except AzureError as error:
                if not self._token or left <= 0:
                    raise
                log.warning(
                    "the token for Azure ends in %.0f s, and a new one cannot be had now (%s): look at the machine's identity",
                    left,
                    type(error).__name__,
                )

    def renew(self) -> bool:
        """After a refusal: whether there is another token now."""
        with self._lock:
            if self._clock.monotonic() - self._got < _NEW:
                return False
            before = self._token
            self._ask({}, anew=True)
            return self._token != before

    def _ask(self, options: dict[str, Any], anew: bool = False) -> None:
        if self._credential is None or anew:
            self._credential = self._make()
        options = {name: value for name, value in options.items() if name != "enable_cae"}
        token = self._credential.get_token(SCOPE, **options)
        self._got = self._clock.monotonic()
        # Wall seconds become monotonic once, on receipt.
        self._ends = self._got + token.expires_on - self._clock.time()
        self._token = token.token
