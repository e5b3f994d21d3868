"""What a machine is to its cloud: a service on loopback that gives credentials for five minutes, counts, and can go away.

The stores behind TLS are real, and take these credentials as the real ones do: Swift checks the key, Azurite the token's
claims. (Nobody checks Google's.)
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from tests.e2e.processes import TIMEOUT
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.fixtures_servers import RequireServer, TlsBefore
from tests.servers.azurite import ACCOUNT, Azurite
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.gcs import PROJECT
from tests.servers.nginx import Nginx
from tests.servers.swift import SECRET_KEY, USER

#: Seconds that the credentials hold: so few that everybody would like to have others.
LASTS = 300


@dataclass(slots=True)
class Identity:
    """A store, and the only way to be let in."""

    url: str
    front: Nginx
    #: How often it was asked for credentials.
    asked: Callable[[], int]
    #: It is there no more: who asks is refused a connection.
    go: Callable[[], None]


@contextmanager
def _service(answer: Callable[[], dict[str, object]]) -> Iterator[AnsweringServer]:
    def said(asked: Asked) -> Answer:
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(answer()).encode())

    with AnsweringServer(said) as server:
        yield server


@contextmanager
def of_aws(
    request: pytest.FixtureRequest, tls_before: TlsBefore, env: pytest.MonkeyPatch, folder: Path
) -> Iterator[Identity]:
    """A container's role."""

    def role() -> dict[str, object]:
        end = datetime.fromtimestamp(time.time() + LASTS, UTC).isoformat()
        return {"AccessKeyId": USER, "SecretAccessKey": SECRET_KEY, "Token": "session", "Expiration": end}

    swift = request.getfixturevalue("swift")
    url, front = swift.fresh(), tls_before(swift)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        env.delenv(name)
    with _service(role) as service:
        env.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/role")
        yield Identity(
            f"{url}/runs", front, lambda: len(service.asked), lambda: service.__exit__(None, None, None)
        )


@contextmanager
def of_google(
    request: pytest.FixtureRequest, tls_before: TlsBefore, env: pytest.MonkeyPatch, folder: Path
) -> Iterator[Identity]:
    """A machine's service account."""

    def answer(asked: Asked) -> Answer:
        headers = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}
        said: object = PROJECT
        if asked.path.endswith("/token"):
            said = {"access_token": "token", "expires_in": LASTS, "token_type": "Bearer"}
        elif asked.path.endswith("/service-accounts/default/"):
            said = {"email": f"job@{PROJECT}.iam.gserviceaccount.com", "scopes": [], "aliases": ["default"]}
        return Answer(200, headers, json.dumps(said).encode())

    gcs = request.getfixturevalue("gcs")
    url, front = gcs.fresh(), tls_before(gcs)
    with AnsweringServer(answer) as service:
        for name in ("STORAGE_EMULATOR_HOST", "NO_GCE_CHECK"):
            env.delenv(name)
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            env.setenv(name, service.url.removeprefix("http://"))
        env.setenv("CLOUDSDK_CONFIG", str(folder / "none"))
        options = f"/runs?endpoint={front.endpoint}&ca={front.certificates.ca}"
        yield Identity(
            url + options, front, lambda: len(service.asked), lambda: service.__exit__(None, None, None)
        )


class _WithTokens(Azurite):
    """Lets in by a token, which it does over TLS only."""

    def __init__(self, program: str, openssl: str) -> None:
        super().__init__(program)
        self._openssl = openssl
        self.certificates: Certificates

    def commands(self) -> Sequence[Sequence[str]]:
        (words,) = super().commands()
        self.certificates = made = make_certificates(self.folder, self._openssl)
        self.endpoint = self.endpoint.replace("http:", "https:")
        return [[*words, "--oauth", "basic", "--cert", str(made.certificate), "--key", str(made.key)]]

    def answers(self) -> bool:
        url = f"{self.endpoint}/{ACCOUNT}?comp=list"
        return requests.get(url, timeout=TIMEOUT, verify=str(self.certificates.ca)).status_code == 403


@contextmanager
def of_azure(
    request: pytest.FixtureRequest, tls_before: TlsBefore, env: pytest.MonkeyPatch, folder: Path
) -> Iterator[Identity]:
    """A managed identity."""
    require: RequireServer = request.getfixturevalue("require_server")

    def answer() -> dict[str, object]:
        now = int(time.time())
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/tenant/",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": now + LASTS,
        }
        token = ".".join([_part({"alg": "none", "typ": "JWT"}), _part(claims), "signature"])
        return {"access_token": token, "expires_on": str(now + LASTS), "token_type": "Bearer"}

    with (
        _WithTokens(require("azurite-blob"), require("openssl")) as azurite,
        _service(answer) as service,
    ):
        env.setenv("REQUESTS_CA_BUNDLE", str(azurite.certificates.ca))
        url, front = azurite.fresh(), tls_before(azurite)
        env.delenv("AZURE_STORAGE_CONNECTION_STRING")
        env.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        env.setenv("IDENTITY_ENDPOINT", f"{service.url}/token")
        env.setenv("IDENTITY_HEADER", "header")
        options = f"/runs?account={ACCOUNT}&endpoint={front.endpoint}/{ACCOUNT}&ca={front.certificates.ca}"
        yield Identity(
            url + options, front, lambda: len(service.asked), lambda: service.__exit__(None, None, None)
        )


def _part(claims: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()


CLOUDS = {"s3": of_aws, "gs": of_google, "az": of_azure}
