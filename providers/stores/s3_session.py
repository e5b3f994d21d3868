"""Who we are to S3: credentials taken from AWS's own chain, and a client that holds them as they are.

botocore refreshes credentials while it signs, and waits for the metadata service if they end within ten minutes, also
when that service is gone: in the middle of the last save. So what it found is frozen into a client, `freshen` renews
them a quarter of an hour ahead, and what still holds is used when nothing newer can be had.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError

from ..errors import DeniedError
from .urls import Location

log = logging.getLogger("spotguard")

#: Seconds before their end at which credentials are renewed, if that can be had.
_AHEAD = 15 * 60

_CONFIG = Config(
    retries={"total_max_attempts": 1, "mode": "standard"},  # the caller's loop retries, by its deadline
    request_checksum_calculation="when_required",  # ours is given; S3 wants one for DeleteObjects
    response_checksum_validation="when_required",
    s3={
        "payload_signing_enabled": False
    },  # SHA-256 of all bytes, on plain HTTP, beside a CRC32 that is checked
)


class S3Session:
    """Makes clients whose requests go through `carry`."""

    def __init__(self, location: Location, carry: Callable[..., object]) -> None:
        self._at = location
        self._carry = carry
        self._lock = threading.Lock()
        self._client: Any = None
        self._found: Any = None
        self._frozen: Any = None

    def client(self) -> Any:
        """The client of now.

        Raises:
            DeniedError: no credentials are to be found.
        """
        client = self._client
        if client is not None:
            return client
        with self._lock:
            if self._client is None:
                self._make()
            return self._client

    def freshen(self) -> None:
        """Renew credentials that end soon. Where that fails, those that hold are kept.

        Raises:
            DeniedError: no credentials are to be found.
        """
        self.client()
        found = self._found
        if not isinstance(found, RefreshableCredentials) or not found.refresh_needed(_AHEAD):
            return
        with self._lock:
            try:
                self._make()
            except (BotoCoreError, DeniedError, OSError) as error:
                log.warning("AWS credentials end soon, and new ones cannot be had now: %s", error)

    def renew(self, refused: object) -> bool:
        """After `refused` was refused: whether there is a client with other credentials."""
        with self._lock:
            if self._client is refused:
                before = self._frozen
                self._make()
                return bool(self._frozen != before)
            return True

    def _make(self) -> None:
        options = self._at.options
        session = boto3.session.Session(profile_name=options.get("profile"))
        found = session.get_credentials()
        if found is None:
            raise DeniedError(
                f"{self._at.url}: no AWS credentials are to be found; give the machine an instance role, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        frozen = found.get_frozen_credentials()
        client = session.client(
            "s3",
            region_name=options.get("region")
            or session.region_name
            or os.environ.get("AWS_REGION")
            or "us-east-1",
            endpoint_url=options.get("endpoint"),
            aws_access_key_id=frozen.access_key,
            aws_secret_access_key=frozen.secret_key,
            aws_session_token=frozen.token,
            config=_CONFIG,
        )
        client.meta.events.register("before-send.s3", self._carry)
        self._found, self._frozen, self._client = found, frozen, client
