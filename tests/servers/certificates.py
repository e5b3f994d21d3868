"""A certificate authority of a test's own, and a certificate of it for this machine's loopback."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_CA = """
[req]
distinguished_name = name
x509_extensions = extensions
[name]
[extensions]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""

# Python 3.13 verifies strictly (RFC 5280): the key identifiers must be there.
_SERVER = """
subjectAltName = DNS:localhost, IP:127.0.0.1
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-batch")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files."""

    ca: Path
    certificate: Path
    key: Path

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which botocore, and what stands on requests, believe this authority."""
        return {"AWS_CA_BUNDLE": str(self.ca), "REQUESTS_CA_BUNDLE": str(self.ca)}


def make_certificates(folder: Path, openssl: str) -> Certificates:
    """New ones in `folder`, good for two days."""

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    (folder / "ca.conf").write_text(_CA)
    (folder / "server.conf").write_text(_SERVER)
    request = ("req", "-config", "ca.conf", *_KEY)
    ca = ("-subj", "/CN=the tests' authority", "-keyout", "ca.key", "-out", "ca.pem")
    run(*request, "-x509", "-days", "2", *ca)
    run(*request, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    signing = (
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "server.conf",
    )
    run("x509", "-req", "-in", "server.csr", *signing, "-out", "server.pem")
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
