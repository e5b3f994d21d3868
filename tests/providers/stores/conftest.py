"""What the tests of stores share: a certificate for loopback, and a name by which AWS knows us."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from spotguard.providers.stores.opening import open_store
from spotguard.providers.stores.store import BlobStore
from tests.providers.stores.azure_account import ACCOUNT, KEY, Opened


@dataclass(frozen=True, slots=True)
class Certificate:
    """One that signed itself, for 127.0.0.1."""

    #: What a client is told to trust.
    ca: Path
    server: ssl.SSLContext


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    ca, private = folder / "ca.pem", folder / "key.pem"
    ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(ca, private)
    return Certificate(ca, server)


@pytest.fixture
def somebody_to_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment, none of the machine's own settings."""
    for name in ("AWS_CA_BUNDLE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SOMEBODY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A store whose account is at a server of the test."""

    def at(endpoint: str, options: str = "", words: str = f"AccountKey={KEY}") -> BlobStore:
        connection = f"AccountName={ACCOUNT};{words};BlobEndpoint={endpoint}/{ACCOUNT}"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        return open_store(f"az://container/prefix{options}")

    return at
