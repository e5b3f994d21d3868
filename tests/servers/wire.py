"""HTTP/1.1 as bytes on a wire: heads and bodies cut from a stream, and passed on just as they came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader

_PIECE = 65536


class Cut(ConnectionError):
    """The other side left in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first lines of a message. Header names are in lower case."""

    raw: bytes
    first: tuple[str, ...]
    headers: dict[str, str]

    @property
    def status(self) -> int:
        """Of a response."""
        return int(self.first[1])


def read_head(stream: BufferedReader) -> Head | None:
    """The next message's head; None when the other side is through."""
    lines = []
    while line := stream.readline(65537):
        lines.append(line)
        if line in (b"\r\n", b"\n"):
            first, *rest = b"".join(lines).decode("latin-1").splitlines()
            headers = (line.partition(":") for line in rest if line)
            return Head(
                b"".join(lines),
                tuple(first.split(" ", 2)),
                {name.strip().lower(): value.strip() for name, _, value in headers},
            )
    if lines:
        raise Cut("in the head")
    return None


def request_body(head: Head, stream: BufferedReader) -> Iterator[bytes]:
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunked(stream)
    return _counted(stream, int(head.headers.get("content-length", 0)))


def response_body(method: str, head: Head, stream: BufferedReader) -> Iterator[bytes]:
    """RFC 9112, 6.3."""
    if method == "HEAD" or head.status in (204, 304) or head.status < 200:
        return iter(())
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunked(stream)
    if "content-length" in head.headers:
        return _counted(stream, int(head.headers["content-length"]))
    return iter(lambda: stream.read1(_PIECE), b"")


def _counted(stream: BufferedReader, length: int) -> Iterator[bytes]:
    while length:
        piece: bytes = stream.read1(min(_PIECE, length))
        if not piece:
            raise Cut(f"{length} bytes before the end")
        length -= len(piece)
        yield piece


def _chunked(stream: BufferedReader) -> Iterator[bytes]:
    """The framing is part of what is passed on."""
    while True:
        line = stream.readline(65537)
        if not line.endswith(b"\n"):
            raise Cut("in a chunk's size")
        yield line
        if (size := int(line.partition(b";")[0], 16)) == 0:
            break
        yield from _counted(stream, size + 2)
    while line := stream.readline(65537):  # trailers, and the empty line
        yield line
        if line in (b"\r\n", b"\n"):
            return
    raise Cut("in the trailers")
