"""Which storage account, as whom, and over which wire: what an URL and Azure's conventional variables say together."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import requests
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import ContainerClient

from ...clock import Clock
from ...errors import UsageError
from ...optional_deps import how_to_install
from ..base import Credentials
from ..http import Transport
from ..names import CONNECTION, account_of, check_container, endpoint_of
from ..url import Location
from .token import HeldToken

_KEY, _SAS = "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"


class _SasTransport(Transport):
    """A SAS stands in every URL, and urllib3's error quotes the URL that it could not reach: its reason is enough."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        try:
            return super().send(request, *args, **kwargs)
        except requests.ConnectionError as error:
            reason = getattr(error.args[0], "reason", None) if error.args else None
            if reason is None:
                raise
            plain = type(error)(reason)
        raise plain  # here, where it has no context that quotes


def open_container(at: Location, clock: Clock) -> tuple[ContainerClient, HeldToken | None]:
    """A client of the container, and the token that it uses, if it uses one. Nothing is sent.

    Raises:
        UsageError: no account is said, or what is said cannot be used.
    """
    check_container(at)
    ca = at.options.get("ca")
    if ca is not None and not Path(ca).is_file():
        raise UsageError(f"store {at.url!r}: ca={ca} is no file here; name one of certificates in PEM")
    token: HeldToken | None = None
    try:
        if said := os.environ.get(CONNECTION):
            words = _connection(at, said)
            return ContainerClient.from_connection_string(words, at.bucket, **_wire(ca)), None
        account, endpoint = account_of(at, os.environ)
        credential: AzureNamedKeyCredential | AzureSasCredential | str | HeldToken
        if key := os.environ.get(_KEY):
            # By itself the SDK takes the account's name from the endpoint.
            credential = AzureNamedKeyCredential(account, key) if account else key
        elif signature := os.environ.get(_SAS):
            credential = AzureSasCredential(signature.removeprefix("?"))
        else:
            credential = token = HeldToken(_identity(at), clock)
        return ContainerClient(endpoint, at.bucket, credential=credential, **_wire(ca)), token
    except ValueError as error:
        # The SDK's own words; those of its that quote a value quote an URL without its query.
        raise UsageError(f"store {at.url!r}: {error}; correct the variables AZURE_STORAGE_…") from error


def described(token: HeldToken | None, clock: Clock) -> Credentials:
    """What `open_container` found in the environment, in its order."""
    if token is not None:
        return Credentials("the machine's or the workload's identity", token.left(), renewed=True)
    said = os.environ.get(CONNECTION)
    signature = _words(said).get("sharedaccesssignature", "") if said else os.environ.get(_SAS, "")
    if not signature or (not said and os.environ.get(_KEY)):
        return Credentials("a key of the account", None, renewed=False)
    ends = parse_qs(signature.removeprefix("?")).get("se", [""])[0]
    try:
        at = datetime.fromisoformat(ends)
    except ValueError:  # a stored policy says when
        return Credentials("a SAS", None, renewed=False, temporary=True)
    left = at.replace(tzinfo=at.tzinfo or UTC).timestamp() - clock.time()
    return Credentials("a SAS", left, renewed=False, temporary=True)


def _words(said: str) -> dict[str, str]:
    """A connection string's words, by name in lower case."""
    parts = (word.split("=", 1) for word in said.strip().split(";") if "=" in word)
    return {name.lower(): word for name, word in parts}


def _connection(at: Location, said: str) -> str:
    """The connection string, with what the URL says in the place of its own."""
    words = dict(word.split("=", 1) for word in said.strip().rstrip(";").split(";") if "=" in word)
    named = {name.lower(): name for name in words}
    account, theirs = at.options.get("account"), words.get(named.get("accountname", ""))
    if account is not None and theirs is not None and account != theirs:
        raise UsageError(
            f"store {at.url!r} is in the account {account!r}, and {CONNECTION} is for {theirs!r}: give the former's, or unset it"
        )
    if "endpoint" in at.options:
        words[named.get("blobendpoint", "BlobEndpoint")] = endpoint_of(at)
    return ";".join(f"{name}={word}" for name, word in words.items())


def _identity(at: Location) -> Any:
    """A maker of the machine's own identity: a workload's, a managed one, az login."""
    try:
        from azure.identity import DefaultAzureCredential  # half a second that keys and SAS need not pay
    except ModuleNotFoundError as error:
        raise UsageError(
            f"store {at.url!r} needs azure-identity, as no key or SAS is set: {how_to_install('azure')}"
        ) from error
    # It warns in a paragraph of what is an error of ours in one line. Where nobody configured logging, that goes to stderr.
    words = logging.getLogger("azure")
    if not words.handlers:
        words.addHandler(logging.NullHandler())

    def make() -> Any:
        session = requests.Session()
        session.mount("https://", Transport())
        session.mount("http://", Transport(proxied=False))
        return DefaultAzureCredential(transport=RequestsTransport(session=session))

    return make


def _wire(ca: str | None) -> Mapping[str, Any]:
    """What makes the SDK send through our transport, once, and where we said."""
    session, link = requests.Session(), _SasTransport(ca)
    session.mount("http://", link)
    session.mount("https://", link)
    session.headers["Accept-Encoding"] = "identity"
    session.auth = _as_signed
    return {
        # verify given, REQUESTS_CA_BUNDLE does not take the place of ca=.
        "transport": RequestsTransport(session=session, session_owner=False, connection_verify=ca or True),
        "retry_total": 0,  # the caller's loop retries, by its deadline
        "permit_redirects": False,
        # One request whatever the size: we say which range, and read it ourselves.
        "max_single_get_size": 2**40,
    }


def _as_signed(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """requests would put a password of ~/.netrc in the place of the signature."""
    return request
