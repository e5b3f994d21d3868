"""A service with the API of S3 that leaves out what S3's answers have besides: some services do."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from tests.fakes.answering import Answer, Asked
from tests.providers.stores.s3.asked import refusal


@dataclass
class BareS3:
    """Answers for `AnsweringServer`: objects in a dict, and no header or code that could be left out."""

    #: The answer to DeleteObjects; None: it deletes, and names no key.
    batch: Answer | None = None
    #: The answer to a conditional create; None: it creates.
    condition: Answer | None = None
    #: Whether it keeps checksums, and tells them.
    checksums: bool = False
    #: Whether somebody in between swallows uploads and deletions, and answers as if they were done.
    swallowing: bool = False
    objects: dict[str, bytes] = field(default_factory=dict)
    _kept: dict[str, str] = field(default_factory=dict)

    def __call__(self, asked: Asked) -> Answer:
        name = asked.path.removeprefix("/bucket").lstrip("/")
        if asked.method == "POST":
            if self.batch is not None:
                return self.batch
            for name in [*self.objects]:
                if not self.swallowing and f"<Key>{name}</Key>".encode() in asked.body:
                    del self.objects[name]
            return Answer(200, {}, b"<DeleteResult/>")
        if "list-type" in asked.query:
            return self._listing(asked.query["prefix"])
        if asked.method == "PUT":
            if "if-none-match" in asked.headers and self.condition is not None:
                return self.condition
            if "if-none-match" in asked.headers and name in self.objects:
                return Answer(412)
            if not self.swallowing:
                self.objects[name], self._kept[name] = asked.body, asked.headers["x-amz-checksum-crc32"]
            return Answer()
        if asked.method == "DELETE":
            if not self.swallowing:
                self.objects.pop(name, None)
            return Answer(204)
        if (data := self.objects.get(name)) is None:
            return Answer(404)
        if "range" not in asked.headers:
            kept = {"x-amz-checksum-crc32": self._kept[name]} if self.checksums else {}
            return Answer(200, kept, data)
        start, _, last = asked.headers["range"].removeprefix("bytes=").partition("-")
        if int(start) >= len(data):
            return Answer(416)
        part = data[int(start) : int(last) + 1]
        where = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
        return Answer(206, {"Content-Range": where}, part)

    def _listing(self, prefix: str) -> Answer:
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size></Contents>"
            for name, data in sorted(self.objects.items())
            if name.startswith(prefix)
        )
        return Answer(
            200,
            {},
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode(),
        )


#: Refusals of DeleteObjects by services and policies that allow single deletes.
WITHOUT_BATCH = {
    "501": refusal(501, "NotImplemented"),
    "501 without words": Answer(501),
    "405": refusal(405, "MethodNotAllowed"),
    "403": refusal(403, "AccessDenied"),
    "403 of a firewall": Answer(403, {"Content-Type": "text/html"}, b"<html>no<br>"),
    "400 without MD5": refusal(400, "MissingContentMD5"),
}
