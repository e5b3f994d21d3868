"""A token of Azure's that is held: the identity is asked ahead of time, and never while bytes are sent (law 8).

The SDK would ask by itself in the last five minutes of a token, during a request. So it is told that each token ends now, asks us
before every request, and has the one we hold. Where a metadata service is gone, azure-identity tries for minutes: whoever asks it
is a thread of its own, which nobody waits for longer than his own time.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError

from ...clock import Clock

log = logging.getLogger("spotguard")

#: What a storage account's data wants a token for.
SCOPE = "https://storage.azure.com/.default"

#: Seconds before its end at which a token is renewed, if that can be had.
_AHEAD = 15 * 60.0
#: Seconds until `keep` asks again: else each thread of a save would wait for an identity that is gone, every few seconds.
_AGAIN = 60.0
#: Seconds in which a token is new: one that is refused then is not the reason.
_NEW = 30.0
#: Seconds that a request without a time of its own waits for a token; and that `keep` waits for a better one.
_PATIENCE, _WHILE = 60.0, 5.0


class _Asking:
    """One question to the identity, for all who want its answer."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: Exception | None = None


class _Time(threading.local):
    """Until when the calling thread waits."""

    until: float | None = None


class HeldToken:
    """A `TokenCredential` over others.

    Args:
        make: a new credential, which remembers no token: an old one would give again what was refused.
        clock: for a token's age.
    """

    def __init__(self, make: Callable[[], Any], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: _Asking | None = None
        self._token = ""
        self._got = self._ends = 0.0
        self._not_before = -math.inf
        self._time = _Time()

    @contextmanager
    def within(self, timeout: float | None) -> Iterator[None]:
        """The calling thread waits no longer than this inside, whoever asks for it."""
        self._time.until = None if timeout is None else self._clock.monotonic() + timeout
        try:
            yield
        finally:
            self._time.until = None

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """The token that is held. With options the store asked for another: then one that is not new is renewed."""
        named = {name: options[name] for name in ("tenant_id", "claims") if options.get(name)}
        if self._left() <= 0 or (named and not self._new()):
            self._ask(named, _PATIENCE)
        with self._lock:
            return AccessToken(self._token, int(self._clock.time()))

    def left(self) -> float | None:
        """Seconds that the token that is held still lives; None where none is held."""
        return self._left() if self._token else None

    def keep(self) -> None:
        """Have a token for another quarter of an hour. Where none is to be had, one that lives is kept.

        Raises:
            AzureError, TimeoutError: there is none that lives.
        """
        remains = self._left()
        if remains >= _AHEAD or (remains > 0 and not self._its_turn()):
            return
        try:
            self._ask({}, _WHILE if remains > 0 else _PATIENCE)
        except (AzureError, TimeoutError) as error:
            if remains <= 0:
                raise
            log.warning(
                "the token for Azure ends in %.0f s, and a new one cannot be had now (%s): look at the machine's identity",
                remains,
                type(error).__name__,
            )

    def _its_turn(self) -> bool:
        with self._lock:
            now = self._clock.monotonic()
            if now < self._not_before:
                return False  # asked a moment ago, or by another thread now
            self._not_before = now + _AGAIN
            return True

    def renew(self) -> bool:
        """After a refusal: whether there is another token now."""
        if self._new():
            return False
        before = self._token
        self._ask({}, _PATIENCE)
        return self._token != before

    def _left(self) -> float:
        """Seconds that the token still lives; where there is none, none."""
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
                self._asking = asking  # not before: nobody would ever answer it
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
            with self._lock:
                self._got = self._clock.monotonic()
                # Wall seconds become monotonic once, on receipt.
                self._ends = self._got + token.expires_on - self._clock.time()
                self._token = token.token
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait raise it
            asking.error = error
        finally:
            with self._lock:
                self._asking = None
            asking.done.set()
