"""The index of a checkpoint: its manifests in one object, with each packed text once.

A restore needs the manifests of all ranks, on every machine: of 1,024 ranks they are 1,024 requests and 37 MB, for 128 machines
131,000 requests. The rank that commits has read them all, and puts them as one object.

The index is a shortcut, like the marker. A restore falls back to the manifests if the index is missing, damaged, or does not name
the manifests that the listing shows, by their sizes. It proves from the index what it would prove from the manifests.
`verify` and `prune` read the manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .format.codec import check_format, in_file, manifest_of, open_file, seal
from .format.entries import InvalidField, typed
from .format.manifest import RankManifest, collector_at_rest
from .format.packing import PackedCache

#: Fewest ranks whose checkpoints have an index: the manifests of fewer are as many requests as threads that fetch them.
INDEXED = 17


class IndexBuilder:
    """Collects the manifests of a checkpoint, in any order."""

    def __init__(self) -> None:
        #: Each packed text with its number.
        self._texts: dict[str, int] = {}
        self._manifests: dict[int, tuple[int, dict[str, Any]]] = {}

    def add(self, raw: dict[str, Any], size: int) -> None:
        """Add a manifest.

        Args:
            raw: the fields of its file, which were found valid.
            size: the bytes of its file.
        """
        self._manifests[raw["rank"]] = size, _with_texts(raw, self._number)

    def encode(self) -> bytes:
        """Return the bytes of the index."""
        manifests = [self._manifests[rank] for rank in sorted(self._manifests)]
        return seal(
            "index",
            {
                "sizes": [size for size, _ in manifests],
                "manifests": [raw for _, raw in manifests],
                "texts": [*self._texts],
            },
        )

    def _number(self, text: Any) -> Any:
        return self._texts.setdefault(text, len(self._texts)) if type(text) is str else text


def decode_index(data: bytes, key: str, sizes: Mapping[int, int]) -> list[RankManifest]:
    """Return the manifests in the index at `key`, in order of ranks.

    Args:
        data: the bytes of the object.
        key: the key of the object, for errors.
        sizes: the size of each rank's manifest in the listing.

    Raises:
        CheckpointError: the index is damaged, has another format, or is not of these manifests.
    """
    cache = PackedCache()
    cache.begin_file()
    with in_file(key), collector_at_rest():
        raw = open_file(data, key, "index")
        texts, found = typed(raw, "texts", list), typed(raw, "manifests", list)

        def text(number: Any) -> Any:
            if type(number) is not int or not 0 <= number < len(texts):
                raise InvalidField("a text of the index is missing")
            return texts[number]

        manifests = []
        for each in found:
            if type(each) is not dict:
                raise InvalidField("a manifest of the index is not an object")
            check_format(each)
            manifests.append(manifest_of(_with_texts(each, text), cache))
        if raw.get("sizes") != [sizes.get(manifest.rank) for manifest in manifests] or len(manifests) != len(
            sizes
        ):
            raise InvalidField("the index does not match the manifests in the store")
    return manifests


def _with_texts(raw: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a manifest's fields with each packed text changed."""
    return {
        **raw,
        "tensors": [
            {name: change(text) for name, text in typed({"run": run}, "run", dict).items()}
            for run in typed(raw, "tensors", list)
        ],
        "state": {name: change(text) for name, text in typed(raw, "state", dict).items()},
    }
