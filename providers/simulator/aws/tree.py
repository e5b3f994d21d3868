"""The keys of an EC2 instance's metadata service: keys in directories, below a version."""

from __future__ import annotations

import json
import re

from ...clock import Clock

#: `latest`, or one of the dated versions, and the rest of the path.
_VERSION = re.compile(r"/(?:latest|1\.0|20\d\d-\d\d-\d\d)(/.*|)")

_INSTANCE = {
    "ami-id": "ami-0abcdef1234567890",
    "hostname": "ip-10-0-0-17.ec2.internal",
    "instance-action": "none",
    "instance-id": "i-0123456789abcdef0",
    "instance-life-cycle": "spot",
    "instance-type": "g5.xlarge",
    "local-ipv4": "10.0.0.17",
    "placement/availability-zone": "us-east-1a",
    "placement/availability-zone-id": "use1-az1",
    "placement/region": "us-east-1",
    "events/maintenance/history": "[]",
    "events/maintenance/scheduled": "[]",
    "services/domain": "amazonaws.com",
    "services/partition": "aws",
}
_DOCUMENT = {
    "availabilityZone": "us-east-1a",
    "instanceId": "i-0123456789abcdef0",
    "instanceType": "g5.xlarge",
    "privateIp": "10.0.0.17",
    "region": "us-east-1",
    "version": "2017-09-30",
}


class AwsTree:
    """The keys below `meta-data`, each with the wall-clock time of its last change. Its owner locks it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, tuple[bytes, float]] = {}
        for key, text in _INSTANCE.items():
            self.put(key, text.encode())

    def put(self, key: str, body: bytes) -> None:
        self._keys[key] = (body, self._clock.time())

    def remove(self, key: str) -> None:
        self._keys.pop(key, None)

    def read(self, path: str) -> tuple[bytes, float | None] | None:
        """Return a key's value and the time of its last change, a directory's listing, or None if there is neither."""
        if path == "/":
            return b"1.0\n2021-07-15\nlatest", None
        match = _VERSION.fullmatch(path)
        if match is None:
            return None
        folder, _, key = match[1].strip("/").partition("/")
        if folder == "":
            return b"dynamic\nmeta-data", None
        if f"{folder}/{key}" == "dynamic/instance-identity/document":
            return json.dumps(_DOCUMENT, indent=2).encode(), None
        if folder != "meta-data":
            return None
        if key in self._keys:
            return self._keys[key]
        listing = self._listing(key)
        return (listing, None) if listing else None

    def _listing(self, folder: str) -> bytes:
        """Return the children, one a line, directories with a slash; empty if there is no such directory."""
        prefix = f"{folder}/" if folder else ""
        below = [key.removeprefix(prefix) for key in self._keys if key.startswith(prefix)]
        children = {name.partition("/")[0] + ("/" if "/" in name else "") for name in below}
        return "\n".join(sorted(children)).encode()
