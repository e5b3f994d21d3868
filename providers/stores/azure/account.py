"""The storage account, credentials and transport, from a URL and Azure's conventional variables together."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import requests
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import ContainerClient

from ...clock import Clock
from ...dates import parse_iso
from ...errors import UsageError
from ...optional_deps import how_to_install
from ..base import Credentials
from ..errors import line
from ..http import Transport
from ..names import CONNECTION, account_of, check_container, endpoint_of
from ..url import Location, shown
from .errors import refuse_foreign
from .token import HeldToken

_KEY, _SAS = "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"


class _SasTransport(Transport):
    """A transport whose errors never quote a URL, because every URL holds the SAS.

    urllib3's error quotes the URL that it could not reach. This transport raises only its reason.
    """

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        try:
            return super().send(request, *args, **kwargs)
        except requests.ConnectionError as error:
            reason = getattr(error.args[0], "reason", None) if error.args else None
            if reason is None:
                raise
            plain = type(error)(reason)
        raise plain  # raised here, so that its context holds no error that quotes the URL


def open_container(at: Location, clock: Clock) -> tuple[ContainerClient, HeldToken | None]:
    """Return a client of the container, and the token that it uses, if any. Sends nothing.

    Raises:
        UsageError: no account is given, or a given value cannot be used.
    """
    check_container(at)
    # The SDK logs a paragraph for an error that spotguard raises in one line. Without logging set up, it goes to stderr.
    words = logging.getLogger("azure")
    if not words.handlers:
        words.addHandler(logging.NullHandler())
    ca = at.options.get("ca")
    if ca is not None and not Path(ca).is_file():
        raise UsageError(f"store {at.url!r}: ca={ca} is no file here; name one of certificates in PEM")
    token: HeldToken | None = None
    try:
        if configured := os.environ.get(CONNECTION):
            client = ContainerClient.from_connection_string(
                _connection(at, configured), at.bucket, **_wire(ca)
            )
            return client, None
        account, endpoint = account_of(at, os.environ)
        credential: AzureNamedKeyCredential | AzureSasCredential | str | HeldToken
        if key := os.environ.get(_KEY):
            # By default the SDK takes the account's name from the endpoint.
            credential = AzureNamedKeyCredential(account, key) if account else key
        elif signature := os.environ.get(_SAS):
            credential = AzureSasCredential(signature.removeprefix("?"))
        else:
            credential = token = HeldToken(_identity(at), clock)
        return ContainerClient(endpoint, at.bucket, credential=credential, **_wire(ca)), token
    except ValueError as error:
        # The text is the SDK's own. If it quotes a value, that is a URL without its query.
        raise UsageError(f"store {at.url!r}: {error}; correct the variables AZURE_STORAGE_…") from error


def described(token: HeldToken | None, clock: Clock) -> Credentials:
    """Return a description of the credentials that `open_container` takes from the environment, in the same order."""
    if token is not None:
        return Credentials("the machine's or the workload's identity", token.left(), renewed=True)
    text = os.environ.get(CONNECTION)
    signature = _words(text).get("sharedaccesssignature", "") if text else os.environ.get(_SAS, "")
    if not signature or (not text and os.environ.get(_KEY)):
        return Credentials("a key of the account", None, renewed=False)
    ends = parse_qs(signature.removeprefix("?")).get("se", [""])[0]
    at = parse_iso(ends)  # None: the time is in a stored policy
    return Credentials("a SAS", None if at is None else at - clock.time(), renewed=False, temporary=True)


def _words(text: str) -> dict[str, str]:
    """Return the values of a connection string, by name in lower case."""
    parts = (value.split("=", 1) for value in text.strip().split(";") if "=" in value)
    return {name.lower(): value for name, value in parts}


def _connection(at: Location, text: str) -> str:
    """Return the connection string, with the URL's values in place of its own."""
    words = dict(value.split("=", 1) for value in text.strip().rstrip(";").split(";") if "=" in value)
    named = {name.lower(): name for name in words}
    account, theirs = at.options.get("account"), words.get(named.get("accountname", ""))
    if account is not None and theirs is not None and account != theirs:
        raise UsageError(
            f"store {at.url!r} is in the account {account!r}, and {CONNECTION} is for {theirs!r}: give the former's, or unset it"
        )
    if "endpoint" in at.options:
        words[named.get("blobendpoint", "BlobEndpoint")] = endpoint_of(at)
    return ";".join(f"{name}={value}" for name, value in words.items())


def _identity(at: Location) -> Any:
    """Return a function that makes a credential of the machine's own identity: a workload's, a managed one, az login."""
    try:
        from azure.identity import DefaultAzureCredential  # half a second that keys and a SAS need not spend
    except ModuleNotFoundError as error:
        raise UsageError(
            f"store {at.url!r} needs azure-identity, as no key or SAS is set: {how_to_install('azure')}"
        ) from error

    def make() -> Any:
        session = requests.Session()
        session.mount("https://", Transport())
        session.mount("http://", Transport(proxied=False))
        session.hooks["response"].append(_refuse_page)
        return DefaultAzureCredential(transport=RequestsTransport(session=session))

    return make


def _refuse_page(response: requests.Response, *args: Any, **kwargs: Any) -> None:
    """Refuse a page of a login or a proxy in place of a token; azure-identity would retry it, or trip over its fields.

    Raises:
        ClientAuthenticationError: the answer is a redirect or a page.
    """
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    place = response.headers.get("Location", "") if response.is_redirect else ""
    if place or kind == "text/html":
        response.close()
        to = f", which sends spotguard to {line(shown(place.partition('?')[0]))}" if place else ""
        raise ClientAuthenticationError(
            f"the answer is none of an identity ({response.status_code} {kind}{to}): a proxy or captive portal may be in between"
        )


def _wire(ca: str | None) -> Mapping[str, Any]:
    """Return the options that make the SDK send each request through this transport, once, to the configured address only."""
    session, link = requests.Session(), _SasTransport(ca)
    session.mount("http://", link)
    session.mount("https://", link)
    session.headers["Accept-Encoding"] = "identity"
    session.auth = _as_signed
    return {
        # With verify given, REQUESTS_CA_BUNDLE does not replace ca=.
        "transport": RequestsTransport(session=session, session_owner=False, connection_verify=ca or True),
        "retry_total": 0,  # the caller's loop retries, by its deadline
        "permit_redirects": False,
        "raw_response_hook": refuse_foreign,
        # One request whatever the size: the store sets the range, and reads the body itself.
        "max_single_get_size": 2**40,
    }


def _as_signed(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return the request unchanged. Without this, requests would replace the signature with a password of ~/.netrc."""
    return request
