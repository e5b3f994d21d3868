"""Google as a client of Cloud Storage meets it: two token services that count (one is a machine's metadata), and an API
that says what the test put there."""

from __future__ import annotations

import functools
import json
import os
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.fakes.answering import Asked
from tests.fakes.certificate import Certificate
from tests.fakes.raw_server import RawServer

PROJECT = "spotguard-tests"


@dataclass(frozen=True, slots=True)
class Say:
    """An answer. Without a status the connection is closed in its place."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Where the answer is to break off.
    length: int | None = None

    @classmethod
    def error(cls, status: int, reason: str) -> Say:
        """As the JSON API writes it."""
        error = {"code": status, "message": f"words of {status}", "errors": [{"reason": reason}]}
        return cls(status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json"})


class FakeGoogle:
    """Answers on `url`; each token is another one.

    Args:
        folder: for a key file and, with `tls`, a certificate.
    """

    def __init__(self, folder: Path, *, tls: bool = False) -> None:
        self._folder = folder
        self._server, self._tokens = (
            RawServer(self._serve),
            RawServer(lambda connection, _: self._talk(connection)),
        )
        self._certificate = Certificate.made(folder) if tls else None
        self.url = self._server.url.replace("http:", "https:") if tls else self._server.url
        #: Of the metadata service, for GCE_METADATA_HOST.
        self.host = self._tokens.url.removeprefix("http://")
        #: What the API says next; else what an empty bucket says.
        self.says: deque[Say] = deque()
        #: What the token service says next; else a new token for an hour.
        self.token_says: deque[Say] = deque()
        self.asked: list[Asked] = []
        self.tokens = 0

    def key_file(self) -> Path:
        """Of a service account whose tokens come from here."""
        account = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "1",
            "private_key": _key(),
            "client_email": f"job@{PROJECT}.iam.gserviceaccount.com",
            "token_uri": f"{self._tokens.url}/token",
        }
        path = self._folder / "key.json"
        path.write_text(json.dumps(account))
        return path

    @property
    def ca(self) -> Path:
        """Trusts this server."""
        assert self._certificate is not None
        return self._certificate.ca

    @property
    def connections(self) -> int:
        return self._server.connections

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._tokens.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)
        self._tokens.__exit__(kind, error, trace)

    def _serve(self, connection: socket.socket, number: int) -> None:
        first = connection.recv(1, socket.MSG_PEEK)
        if self._certificate is None or first != b"\x16":  # the first byte of a TLS handshake
            self._talk(connection)
        else:
            # A copy, so that the server can still end the connection by its own.
            copy = socket.socket(fileno=os.dup(connection.fileno()))
            with copy, self._certificate.server.wrap_socket(copy, server_side=True) as wrapped:
                self._talk(wrapped)

    def _talk(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            # A TLS hello has no line: this port speaks none.
            while (line := stream.readline()).endswith(b"HTTP/1.1\r\n"):
                method, target, _ = line.decode().split()
                headers = {}
                while (line := stream.readline().strip()) != b"":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                parts = urlsplit(target)
                body = stream.read(int(headers.get("content-length", 0)))
                asked = Asked(method, parts.path, dict(parse_qsl(parts.query)), headers, body)
                if parts.path.endswith("/token"):
                    say = self._token()
                elif headers.get("metadata-flavor") == "Google":
                    say = _metadata(parts.path)
                else:
                    say = self._answer(asked)
                if say.status == 0:
                    return
                length = len(say.body) if say.length is None else say.length
                lines = [f"HTTP/1.1 {say.status} Said", f"Content-Length: {length}"]
                lines += [f"{name}: {value}" for name, value in say.headers.items()]
                connection.sendall("\r\n".join([*lines, "", ""]).encode() + say.body)
                if length != len(say.body):
                    return

    def _token(self) -> Say:
        if self.token_says:
            return self.token_says.popleft()
        self.tokens += 1
        token = {"access_token": f"token-{self.tokens}", "expires_in": 3600, "token_type": "Bearer"}
        return Say(body=json.dumps(token).encode(), headers={"Content-Type": "application/json"})

    def _answer(self, asked: Asked) -> Say:
        self.asked.append(asked)
        say = self.says.popleft() if self.says else _usual(asked)
        return replace(say, headers={"X-GUploader-UploadID": "of-this-answer", **say.headers})


def _usual(asked: Asked) -> Say:
    """What a bucket answers that takes everything and has nothing."""
    if asked.path.startswith("/upload/"):  # the metadata as they were sent, in the first of two parts
        metadata, rest = asked.body.split(b"\r\n\r\n", 1)[1].split(b"\r\n--", 1)
        size = len(rest.split(b"\r\n\r\n", 1)[1].rpartition(b"\r\n--")[0])
        made = {**json.loads(metadata), "size": str(size), "generation": "1"}
        return Say(body=json.dumps(made).encode())
    if asked.path.startswith("/storage/") and asked.method == "GET":
        if asked.path.endswith("/o"):
            return Say(body=json.dumps({"kind": "storage#objects"}).encode())
        return Say.error(404, "notFound")
    return Say()


def _metadata(path: str) -> Say:
    """As a machine of Compute Engine sees it, with one service account."""
    headers = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}
    if path.endswith("/service-accounts/default/"):
        account = {"email": f"job@{PROJECT}.iam.gserviceaccount.com", "scopes": [], "aliases": ["default"]}
        return Say(body=json.dumps(account).encode(), headers=headers)
    return Say(body=json.dumps(PROJECT).encode(), headers=headers)


@functools.cache
def _key() -> str:
    """One for a process of the suite: making it is slow, and nobody looks at what it signs."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
