"""A certificate that signed itself, for 127.0.0.1: nobody trusts it who is not told to."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Certificate:
    #: What a client is told to trust.
    ca: Path
    server: ssl.SSLContext

    @classmethod
    def made(cls, folder: Path, address: str = "127.0.0.1", days: int = 1) -> Self:
        """By a key on a curve: an RSA key takes a tenth of a second. Needs `cryptography`, which comes with Google's SDK.

        Args:
            folder: for its files.
            address: whose certificate it is.
            days: until it ends; it began two days ago.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, address)])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
                critical=False,
            )
            .sign(key, hashes.SHA256())
        )
        ca, private = folder / "ca.pem", folder / "key.pem"
        ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(ca, private)
        return cls(ca, server)
