"""The recheck of doubted objects: does the store still have them, and whole?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....providers.errors import CorruptError, NotFoundError
from ....providers.stores.base import BlobStore
from ..plan.write_plan import WriteProgress

#: Seconds for one listing of doubted objects. Behind one that hangs or fails, the objects are read for as long.
_LISTING = 5.0


class Recheck:
    """One recheck, as `retry` calls it: it lists the objects' folders, and in each second try reads a byte of each object instead.

    Args:
        objects: the key and the size of each object, by its index.
        progress: counts the failures that any request of the save meets.
        now: returns monotonic seconds.
    """

    def __init__(
        self,
        store: BlobStore,
        objects: Mapping[int, tuple[str, int]],
        progress: WriteProgress,
        now: Callable[[], float],
    ) -> None:
        self._store, self._objects, self._progress, self._now = store, objects, progress, now
        self._tries = 0
        #: The save's failures when the last try began. If there are more now, it is of no worth.
        self.failures = progress.failures
        #: The objects that the last try asked for, and whether each is there whole.
        self.answers: dict[int, bool] = {}

    @property
    def lost(self) -> list[int]:
        """Return the indices of those that are gone or have another size."""
        return [index for index, there in self.answers.items() if not there]

    def __call__(self, left: float | None) -> None:
        self.failures = self._progress.failures
        self._tries += 1
        self.answers.clear()
        limit = _LISTING if left is None else min(left, _LISTING)
        if self._tries % 2:
            self._list(limit)
        else:  # another kind of request: a listing that hangs once more would cost the save its time
            self._read(self._now() + limit)

    def _list(self, limit: float) -> None:
        folders = {key.rpartition("/")[0] + "/" for key, _ in self._objects.values()}
        there = {info.key: info.size for each in folders for info in self._store.list(each, timeout=limit)}
        self.answers.update({index: there.get(key) == size for index, (key, size) in self._objects.items()})

    def _read(self, until: float) -> None:
        """Read the last byte of one object after the other; those left over are in doubt until the next look."""
        for index, (key, size) in self._objects.items():
            if (left := until - self._now()) <= 0:
                return
            try:
                self._store.read_into(key, size - 1, memoryview(bytearray(1)), timeout=left)
                self.answers[index] = True
            except (NotFoundError, CorruptError):
                self.answers[index] = False
