"""The keys of a Compute Engine VM's metadata server: keys in directories, as text or as JSON, each with its ETag.

The ETag belongs to the requested path: a directory's differs from its keys'. It changes with each change, even if the value
returns to an earlier one.
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

#: The keys of a VM. Values of several lines, and numbers, have their JSON type.
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

#: Keys of the VM that GKE's own server shows to a pod.
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
        gke: show only the keys that GKE's metadata server shows to a pod.
    """

    def __init__(self, *, gke: bool = False) -> None:
        self._gke = gke
        self._keys: dict[str, Any] = dict(_VM)
        #: Answers in place of a key's value, by the key.
        self._raw: dict[str, TreeLeaf] = {}
        self._versions: dict[str, int] = {}

    def put(self, key: str, body: bytes, kind: str = TEXT, status: int = 200) -> None:
        """Set a key to any answer, right or wrong. Only plain text with status 200 appears in listings."""
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
        """Change only the ETag."""
        self._versions[key] = self._versions.get(key, 0) + 1

    def read(self, path: str, query: Mapping[str, str]) -> TreeLeaf | None:
        """Return a key or a directory below the root; None if there is neither. A directory needs its trailing slash."""
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
        """Return the keys that listings show. They leave out answers in place of a value."""
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
        """Return the children, one a line, directories with a slash."""
        names = (name for name, _ in self._below(folder))
        return sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in names})

    def _flat(self, folder: str) -> list[str]:
        return [f"{name} {value}" for name, value in self._below(folder)]

    def _nested(self, folder: str) -> dict[str, Any]:
        """Return a directory as nested objects, with names in camelCase, as in every directory's JSON."""
        tree: dict[str, Any] = {}
        for name, value in self._below(folder):
            *folders, leaf = (
                re.sub("-(.)", lambda match: match[1].upper(), part) for part in name.split("/")
            )
            inner = tree
            for part in folders:
                inner = inner.setdefault(part, {})
            inner[leaf] = value
        return tree
