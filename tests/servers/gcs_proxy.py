"""Cloud Storage's JSON API before an emulator that keeps the bytes and few of the rules.

gcp-storage-emulator ignores preconditions, page sizes and checksums in headers, cannot take an empty upload or one of
JSON, and closes every connection. So the rules are kept here (`gcs_catalogue`), and it is a place for bytes.
Uploads are one request, `media` or `multipart`: a resumable one is answered with 501.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.servers.gcs_catalogue import Catalogue, Refused, Resource, Sums
from tests.servers.listening import Listening

# The bucket of the emulator that holds all bytes, by generation.
_BYTES = "bytes"

#: https://cloud.google.com/storage/docs/batch: "no more than 100 calls in a single batch request".
_BATCH = 100

# An object's name is one segment: a slash in it is written %2F.
_BUCKETS = re.compile(r"/storage/v1/b")
_BUCKET = re.compile(r"/storage/v1/b/([^/]+)")
_OBJECTS = re.compile(r"/storage/v1/b/([^/]+)/o")
_OBJECT = re.compile(r"(/download)?/storage/v1/b/([^/]+)/o/([^/]+)")
_UPLOAD = re.compile(r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, resource: Resource, status: int = 200) -> Answer:
        return cls(status, json.dumps(resource).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class GcsProxy:
    """Serves the API on `url`.

    Args:
        emulator: its port on loopback.
    """

    def __init__(self, emulator: int) -> None:
        self._emulator = emulator
        self._turn = threading.Lock()  # it serves one connection at a time, and refuses those that queue
        self._catalogue = Catalogue()
        self._listening = Listening(_Handler, self)
        self.url = self._listening.url

    def start(self) -> None:
        self._bytes("POST", "/storage/v1/b", json.dumps({"name": _BYTES}).encode(), "application/json")
        self._listening.start()

    def stop(self) -> None:
        self._listening.stop()

    def answer(self, method: str, target: str, headers: Message, body: bytes) -> Answer:
        """One call, also of a batch."""
        parts = urlsplit(target)
        asked = dict(parse_qsl(parts.query))
        try:
            if method == "POST" and parts.path in ("/batch/storage/v1", "/batch"):
                return self._batch(headers, body)
            if method == "POST" and (at := _UPLOAD.fullmatch(parts.path)):
                return self._upload(unquote(at[1]), asked, headers, body)
            if at := _OBJECT.fullmatch(parts.path):
                return self._object(method, unquote(at[2]), unquote(at[3]), at[1], asked, headers)
            if method == "GET" and (at := _OBJECTS.fullmatch(parts.path)):
                return Answer.of(self._catalogue.page(unquote(at[1]), asked))
            if method == "GET" and (at := _BUCKET.fullmatch(parts.path)):
                return Answer.of(self._catalogue.bucket(unquote(at[1])))
            if method == "DELETE" and (at := _BUCKET.fullmatch(parts.path)):
                self._catalogue.remove_bucket(unquote(at[1]))
                return Answer(204)
            if method == "POST" and _BUCKETS.fullmatch(parts.path):
                return Answer.of(self._catalogue.make_bucket(json.loads(body)["name"]))
            raise Refused(501, "notImplemented", f"The suite's Cloud Storage has no {method} {parts.path}.")
        except Refused as refused:
            return Answer.of(refused.body(), refused.status)

    def _object(
        self,
        method: str,
        bucket: str,
        name: str,
        download: str | None,
        asked: Mapping[str, str],
        headers: Message,
    ) -> Answer:
        if method == "DELETE":
            gone = self._catalogue.delete(bucket, name, _expected(asked))
            self._bytes("DELETE", f"/storage/v1/b/{_BYTES}/o/{gone}")
            return Answer(204)
        if method != "GET":
            raise Refused(501, "notImplemented", f"The suite's Cloud Storage has no {method} of objects.")
        if download is None and asked.get("alt") != "media":
            return Answer.of(self._catalogue.get(bucket, name))
        try:
            return self._newest(bucket, name, headers.get("Range", ""))
        except Refused as refused:  # a download's errors are for people
            return Answer(refused.status, refused.message.encode(), {"Content-Type": "text/html"})

    def _newest(self, bucket: str, name: str, wanted: str) -> Answer:
        """Between the look into the catalogue and its bytes another request may replace both: then what is there now."""
        found = self._catalogue.get(bucket, name)
        while True:
            try:
                return self._media(found, wanted)
            except FileNotFoundError:
                before, found = found, self._catalogue.get(bucket, name)
                if found["generation"] == before["generation"]:
                    raise

    def _media(self, found: Resource, wanted: str) -> Answer:
        size = int(found["size"])
        said = {
            "Content-Type": found["contentType"],
            "ETag": found["etag"],
            "X-Goog-Generation": found["generation"],
            "X-Goog-Hash": f"crc32c={found['crc32c']},md5={found['md5Hash']}",  # of the whole object, always
            "X-Goog-Stored-Content-Length": found["size"],
        }
        span = _RANGE.fullmatch(wanted)
        if span is None or span.groups() == ("", ""):
            return Answer(200, self._read(found, 0, size), said)
        start = int(span[1]) if span[1] else max(0, size - int(span[2]))
        end = min(size, int(span[2]) + 1) if span[1] and span[2] else size
        if start >= size or end <= start:
            return Answer(416, b"Request range not satisfiable", {"Content-Range": f"bytes */{size}"})
        said["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return Answer(206, self._read(found, start, end), said)

    def _read(self, found: Resource, start: int, end: int) -> bytes:
        if start == end:
            return b""
        path = f"/download/storage/v1/b/{_BYTES}/o/{found['generation']}"
        return self._bytes("GET", path, headers={"Range": f"bytes={start}-{end - 1}"})

    def _upload(self, bucket: str, asked: Mapping[str, str], headers: Message, body: bytes) -> Answer:
        given: Resource = {"contentType": headers.get("Content-Type", "application/octet-stream")}
        if asked.get("uploadType") == "multipart":
            given, body = _multipart(headers, body)
        elif asked.get("uploadType") != "media":
            raise Refused(501, "notImplemented", "The suite's Cloud Storage takes one-shot uploads only.")
        if not (name := asked.get("name", given.get("name", ""))):
            raise Refused(400, "required", "Required parameter: name")
        sums = Sums.of(body)
        hashes = ",".join(headers.get_all("X-Goog-Hash", [])).split(",")
        sums.check(dict(word.strip().split("=", 1) for word in hashes if "=" in word))
        sums.check({to: given[key] for key, to in (("crc32c", "crc32c"), ("md5Hash", "md5")) if key in given})
        generation = self._catalogue.next_generation()
        if body:  # it fails at an upload of nothing
            path = f"/upload/storage/v1/b/{_BYTES}/o?uploadType=media&name={generation}"
            self._bytes("POST", path, body)
        try:
            at = (generation, len(body), sums)
            made, replaced = self._catalogue.insert(bucket, name, given, at, _expected(asked))
        except Refused:
            self._bytes("DELETE", f"/storage/v1/b/{_BYTES}/o/{generation}")
            raise
        if replaced is not None:
            self._bytes("DELETE", f"/storage/v1/b/{_BYTES}/o/{replaced}")
        return Answer.of(made)

    def _batch(self, headers: Message, body: bytes) -> Answer:
        head = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
        calls = BytesParser().parsebytes(head + body).get_payload()
        if not isinstance(calls, list) or len(calls) > _BATCH:
            raise Refused(400, "badRequest", f"The batch request must hold 1 to {_BATCH} calls.")
        answers = []
        for call in calls:
            assert isinstance(call, Message)
            words = call.get_payload(decode=True)
            assert isinstance(words, bytes)
            line, _, rest = words.lstrip().partition(b"\r\n" if b"\r\n" in words else b"\n")
            method, target, *_ = line.decode().split()
            one = self.answer(method, target, BytesParser().parsebytes(rest), b"")
            phrase = http.client.responses[one.status]
            said = "".join(f"{name}: {value}\r\n" for name, value in one.headers.items())
            identity = call.get("Content-ID", "").strip("<>")
            answers.append(
                f"--batch\r\nContent-Type: application/http\r\nContent-ID: <response-{identity}>\r\n\r\n"
                f"HTTP/1.1 {one.status} {phrase}\r\n{said}Content-Length: {len(one.body)}\r\n\r\n".encode()
                + one.body
                + b"\r\n"
            )
        return Answer(
            200, b"".join(answers) + b"--batch--\r\n", {"Content-Type": "multipart/mixed; boundary=batch"}
        )

    def _bytes(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = "application/octet-stream",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Ask the emulator. What it refuses is its own trouble, except a byte that it should have.

        Raises:
            FileNotFoundError: for a GET: it has no such bytes, or has them no more.
        """
        with self._turn:
            connection = http.client.HTTPConnection("127.0.0.1", self._emulator, timeout=60)
            try:
                connection.request(method, path, body, {"Content-Type": content_type, **(headers or {})})
                response = connection.getresponse()
                answer = response.read()
            finally:
                connection.close()
        if method == "GET" and response.status == 404:
            raise FileNotFoundError(path)
        assert method == "DELETE" or response.status in (200, 206), (method, path, response.status, answer)
        return answer


def _expected(asked: Mapping[str, str]) -> int | None:
    return int(asked["ifGenerationMatch"]) if "ifGenerationMatch" in asked else None


def _multipart(headers: Message, body: bytes) -> tuple[Resource, bytes]:
    """The metadata, and the bytes just as they came: email's parser is for text."""
    boundary = headers.get_boundary()
    if headers.get_content_type() != "multipart/related" or boundary is None:
        raise Refused(400, "badContent", "A multipart upload is multipart/related with a boundary.")
    mark = b"--" + boundary.encode()
    first, last = body.find(mark), body.rfind(b"\r\n" + mark + b"--")
    second = body.find(b"\r\n" + mark, first + len(mark))
    if not 0 <= first < second < last:
        raise Refused(400, "badContent", "A multipart upload has two parts.")
    metadata = body[first + len(mark) : second].partition(b"\r\n\r\n")[2]
    start = body.index(b"\r\n\r\n", second) + 4
    given: Resource = json.loads(metadata or b"{}")
    about = BytesParser().parsebytes(body[second + 2 + len(mark) : start].lstrip())
    given.setdefault("contentType", about.get("Content-Type", "application/octet-stream"))
    return given, body[start:last]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: GcsProxy

    def handle_one_request(self) -> None:
        """Any method, one way."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or len(self.raw_requestline) > 65536 or not self.parse_request():
            self.close_connection = True
            return
        answer = self.owner.answer(self.command, self.path, self.headers, self._body())
        phrase = self.responses.get(answer.status, ("",))[0]
        said = {**answer.headers, "Content-Length": str(len(answer.body))}
        lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in said.items())]
        self.wfile.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        self.wfile.write(answer.body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:
                raise ConnectionResetError("the client left in the middle of its request")
            return body
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
