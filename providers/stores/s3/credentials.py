"""Credentials for S3, taken from AWS's own chain, and a client that holds them unchanged.

botocore refreshes credentials while it signs a request. If they end within ten minutes, it waits for the metadata service,
even if that is gone: in the middle of the last save. So this module freezes the credentials into a client. `freshen` renews
them a quarter of an hour ahead. If nothing newer is available, valid ones stay in use.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, UnknownCredentialError
from botocore.httpsession import URLLib3Session

from ...clock import Clock, SystemClock
from ...errors import DeniedError, MisconfiguredError, StoreError
from ..base import Credentials
from ..token import AHEAD, RenewalTurn
from ..url import Location
from .errors import identified

log = logging.getLogger("spotguard")

_CONFIG = Config(
    retries={"total_max_attempts": 1, "mode": "standard"},  # the caller's loop retries, by its deadline
    request_checksum_calculation="when_required",  # the store passes its own; S3 requires one for DeleteObjects
    response_checksum_validation="when_required",
    s3={
        "payload_signing_enabled": False
    },  # would be SHA-256 of all bytes, on plain HTTP, beside a CRC32 that S3 checks
)

#: The region if none is configured: it answers for all of them. For a wrong one, S3's answer names the right one.
_USUAL = "us-east-1"

#: Descriptions of the places where botocore finds credentials.
_KINDS = {
    "env": "variables of the environment",
    "shared-credentials-file": "AWS's credentials file",
    "config-file": "AWS's config file",
    "custom-process": "a program that the profile names",
    "iam-role": "the instance's role",
    "container-role": "the container's role",
    "assume-role": "a role taken on",
    "assume-role-with-web-identity": "a workload's identity (web identity token)",
    "sso": "AWS's single sign-on",
    "login": "aws login",
}


class S3Session:
    """Makes clients whose requests go through `carry`."""

    def __init__(self, location: Location, carry: Callable[..., object], clock: Clock | None = None) -> None:
        self._at = location
        self._carry = carry
        self._clock = clock or SystemClock()
        self._turn = RenewalTurn(self._clock)
        self._boto: Any = None
        self._lock = threading.Lock()
        self._client: Any = None
        self._found: Any = None
        self._frozen: Any = None
        #: How often the chain was asked after a refusal, and the client for which the log says that it gave nothing.
        self._asked = 0
        self._told: object = None

    def client(self) -> Any:
        """Return the current client.

        Raises:
            DeniedError: no credentials were found.
        """
        client = self._client
        if client is not None:
            return client
        with self._lock:
            if self._client is None:
                self._make()
            return self._client

    def freshen(self) -> None:
        """Renew credentials that end soon. If that fails, keep valid ones.

        Raises:
            DeniedError: no credentials were found.
        """
        self.client()
        if not isinstance(self._found, RefreshableCredentials) or not self._found.refresh_needed(AHEAD):
            return
        if not self._turn.take(0.0) or not self._lock.acquire(blocking=False):
            return
        try:
            self._take(self._found)
        except StoreError as error:
            log.warning("AWS credentials end soon, and refreshing them failed: %s [SG305]", error)
        finally:
            self._lock.release()

    def renew(self, refused: object) -> bool:
        """Renew the credentials of the client `refused`; return whether there is a client with other credentials."""
        asked = self._asked
        with self._lock:
            if self._client is not refused:
                return True
            if self._asked != asked:
                return False  # another thread has asked meanwhile
            self._asked += 1
            before = self._frozen
            try:
                self._make()
            except StoreError as error:
                if self._told is not refused:
                    self._told = refused
                    log.warning("AWS credentials are refused, and refreshing them failed: %s [SG305]", error)
                return False
            return bool(self._frozen != before)

    def credentials(self) -> Credentials:
        """Return the credentials that were found, after the first `client`."""
        kind = _KINDS.get(
            method := getattr(self._found, "method", ""), method or "credentials of AWS's chain"
        )
        if isinstance(self._found, RefreshableCredentials):
            ends = getattr(self._found, "_expiry_time", None)
            left = None if ends is None else ends.timestamp() - self._clock.time()
            # Variables keep their values during the whole life of the process.
            return Credentials(kind, left, renewed=method != "env", temporary=left is None)
        return Credentials(kind, None, renewed=False, temporary=bool(self._frozen and self._frozen.token))

    def _make(self) -> None:
        """Ask the whole chain again, files and variables included."""
        with identified(self._at.url):
            core = botocore.session.Session()
            session = boto3.session.Session(
                profile_name=self._at.options.get("profile"), botocore_session=core
            )
            _ask_the_machine_directly(core)
            credentials = session.get_credentials()
        if credentials is None:
            raise DeniedError(
                f"{self._at.url}: no AWS credentials found; give the machine an instance role, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY [SG301]"
            )
        self._boto = session
        self._take(credentials)

    def _take(self, found: Any) -> None:
        """Freeze the credentials in `found`; botocore asks for newer ones if they end within a quarter of an hour."""
        with identified(self._at.url):
            try:
                frozen = found.get_frozen_credentials()
            except RuntimeError as error:
                if type(error) is not RuntimeError:
                    raise
                # botocore raises it if the newer ones are out of date as well
                raise DeniedError(
                    f"{self._at.url}: the AWS credentials to be found have expired ({error}); renew them, or correct "
                    "this machine's clock [SG305]"
                ) from error
        self._found = found
        if self._client is not None and frozen == self._frozen:
            return
        options = self._at.options
        try:
            client = self._boto.client(
                "s3",
                # botocore reads AWS_DEFAULT_REGION, else the profile's region. It does not know AWS_REGION, which other
                # SDKs read.
                region_name=options.get("region")
                or self._boto.region_name
                or os.environ.get("AWS_REGION")
                or _USUAL,
                endpoint_url=options.get("endpoint"),
                aws_access_key_id=frozen.access_key,
                aws_secret_access_key=frozen.secret_key,
                aws_session_token=frozen.token,
                config=_CONFIG,
            )
        except (BotoCoreError, ValueError) as error:  # an endpoint or a region that is none
            raise MisconfiguredError(
                f"{self._at.url}: {error}; correct AWS's settings on this machine, or the store's URL [SG308]"
            ) from error
        client.meta.events.register("before-send.s3", self._carry)
        client.head_bucket = _no_region
        self._frozen, self._client = frozen, client


def _no_region(**arguments: object) -> NoReturn:
    """Stand in for HeadBucket, by which botocore asks for the region if a redirect names none.

    The answer to that is a redirect as well, so botocore would ask until Python's stack ends. S3 names the region.
    """
    raise ClientError({"ResponseMetadata": {"HTTPHeaders": {}}}, "HeadBucket")


def _ask_the_machine_directly(core: botocore.session.Session) -> None:
    """Make botocore ask the machine's metadata service without the environment's proxies (law 5).

    A proxy would answer with its own machine's role, or not at all, and would see the credentials.
    """
    try:
        machine = core.get_component("credential_provider").get_provider("iam-role")._role_fetcher
        machine._session = URLLib3Session(timeout=machine._timeout, proxies={})
    except (AttributeError, UnknownCredentialError):
        # A botocore that keeps the fetcher elsewhere asks as it always did; NO_PROXY keeps it from the proxies.
        log.debug("botocore's way to the metadata service is not known: proxies hold for it", exc_info=True)
