"""What a Compute Engine VM's metadata server has to read: keys in folders, as text or as JSON, each with its ETag.

The ETag belongs to what was asked for: a folder's is another than its keys'. It changes with each change, also where
the value comes back to what it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROOT = "/computeMetadata/v1/"

TEXT, JSON = "application/text", "application/json"

#: Values of several lines, and numbers, are what they are in JSON.
_VM: dict[str, Any] = {
    "instance/cpu-platform": "Intel Cascade Lake",
    "instance/hostname": "trainer-1.us-central1-a.c.example-project.internal",
    "instance/id": 4520031799277581759,
    "instance/machine-type": "projects/739088697201/machineTypes/g2-standard-8",
    "instance/maintenance-event": "NONE",
    "instance/name": "trainer-1",
    "instance/preempted": "FALSE",
    "instance/scheduling/automatic-restart": "FALSE",
    "instance/scheduling/on-host-maintenance": "TERMINATE",
    "instance/scheduling/preemptible": "TRUE",
    "instance/service-accounts/default/email": "trainer@example-project.iam.gserviceaccount.com",
    "instance/service-accounts/default/scopes": "https://www.googleapis.com/auth/cloud-platform",
    "instance/tags": ["training"],
    "instance/virtual-clock/drift-token": "0",
    "instance/zone": "projects/739088697201/zones/us-central1-a",
    "project/numeric-project-id": 739088697201,
    "project/project-id": "example-project",
}

#: What GKE's own server lets a pod see of its VM, below `instance/`.
_SHOWN_TO_PODS = re.compile(r"instance/(?:attributes|hostname|id|service-accounts|zone)(?:/.*)?|project/.*")


@dataclass(frozen=True, slots=True)
class TreeLeaf:
    """One answer of the tree."""

    body: bytes
    kind: str = TEXT
    etag: str = ""
    status: int = 200


class GcpTree:
    """The keys below `computeMetadata/v1/`. Its owner locks it.

    Args:
        gke: only what a pod is shown by GKE's metadata server.
    """

    def __init__(self, *, gke: bool = False) -> None:
        self._gke = gke
        self._keys: dict[str, Any] = dict(_VM)
        #: Answers that are no value of a key, by the key they stand in for.
        self._raw: dict[str, TreeLeaf] = {}
        self._versions: dict[str, int] = {}

    def put(self, key: str, body: bytes, kind: str = TEXT, status: int = 200) -> None:
        """Any answer, right or wrong. What is no plain text under 200 is on no list."""
        plain = kind == TEXT and status == 200
        self._keys.pop(key, None)
        self._raw.pop(key, None)
        if plain:
            self._keys[key] = body.decode("utf-8", "surrogateescape")
        else:
            self._raw[key] = TreeLeaf(body, kind, status=status)
        self.touch(key)

    def remove(self, key: str) -> None:
        self._raw.pop(key, None)
        self._keys.pop(key, None)
        self.touch(key)

    def touch(self, key: str) -> None:
        """Change the ETag, and nothing else."""
        self._versions[key] = self._versions.get(key, 0) + 1

    def read(self, path: str, query: Mapping[str, str]) -> TreeLeaf | None:
        """A key or a folder below the root; None where there is neither. A folder without its slash is none."""
        if self._gke and path and not path.endswith("/") and not _SHOWN_TO_PODS.fullmatch(path):
            return None
        if (raw := self._raw.get(path)) is not None:
            return TreeLeaf(raw.body, raw.kind, self._etag(path, raw.body), raw.status)
        alt, recursive = query.get("alt", ""), query.get("recursive", "").lower() == "true"
        if path in self._keys:
            value = self._keys[path]
            plain = alt != "json" and not isinstance(value, list)
            body = str(value).encode("utf-8", "surrogateescape") if plain else json.dumps(value).encode()
            return TreeLeaf(body, TEXT if plain else JSON, self._etag(path, body))
        if not self.is_folder(path.removesuffix("/")) or not (path.endswith("/") or not path):
            return None
        if recursive and alt != "text":
            body = json.dumps(self._nested(path)).encode()
            return TreeLeaf(body, JSON, self._etag(path, body))
        body = "".join(
            f"{line}\n" for line in (self._flat(path) if recursive else self._listing(path))
        ).encode()
        return TreeLeaf(body, TEXT, self._etag(path, body))

    def is_folder(self, path: str) -> bool:
        return not path or any(key.startswith(f"{path}/") for key in self._there())

    def _there(self) -> list[str]:
        """The keys that are shown. What is answered in a value's place is on no list."""
        return [key for key in self._keys if not self._gke or _SHOWN_TO_PODS.fullmatch(key)]

    def _etag(self, path: str, body: bytes) -> str:
        changes = sum(
            n for key, n in self._versions.items() if key == path or not path or key.startswith(path)
        )
        return hashlib.blake2b(f"{path} {changes} ".encode() + body, digest_size=8).hexdigest()

    def _below(self, folder: str) -> list[tuple[str, Any]]:
        return [
            (key.removeprefix(folder), self._keys[key]) for key in self._there() if key.startswith(folder)
        ]

    def _listing(self, folder: str) -> list[str]:
        """The children, one to a line, folders with a slash."""
        names = (name for name, _ in self._below(folder))
        return sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in names})

    def _flat(self, folder: str) -> list[str]:
        return [f"{name} {value}" for name, value in self._below(folder)]

    def _nested(self, folder: str) -> dict[str, Any]:
        """With names in camelCase, as every folder comes in JSON."""
        whole: dict[str, Any] = {}
        for name, value in self._below(folder):
            *folders, leaf = (
                re.sub("-(.)", lambda match: match[1].upper(), part) for part in name.split("/")
            )
            inner = whole
            for part in folders:
                inner = inner.setdefault(part, {})
            inner[leaf] = value
        return whole
