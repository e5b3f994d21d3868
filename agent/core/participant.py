"""How fast a save goes, from what its process says of it: the bytes of the last two seconds, and no guess before."""

from __future__ import annotations

from collections import deque

#: Seconds that count: long beside the words (four a second), short beside a window.
_SPAN = 2.0
#: Of a save that brought bytes for less than so many nothing is said afterwards: two of its words, and no rate.
_LEAST = 0.2


class SaveProgress:
    """Pure: told how far a save is and when that was true. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._step: int | None = None
        #: When, and how many bytes had left by then: those of the last two seconds, and the one before them.
        self._heard: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] = (0.0, 0)
        #: Bytes that have left for the store, and all. 0 where nobody has said.
        self.done = self.total = 0

    def hear(self, step: int, done: int, total: int, at: float) -> None:
        """A save of another step begins anew. Fewer bytes than before (an object is sent again) is time without bytes."""
        if step != self._step:
            self._step, self.done = step, 0
            self._heard.clear()
        self.done, self.total = max(self.done, done), max(0, total)
        if not self._heard:
            self._first = (at, self.done)
        self._heard.append((at, self.done))
        while len(self._heard) > 2 and self._heard[1][0] <= at - _SPAN:
            self._heard.popleft()

    def rate(self, now: float) -> float | None:
        """Bytes a second. It falls while nothing is heard. None: too early to say."""
        if len(self._heard) < 2:
            return None
        (since, before), (last, done) = self._heard[0], self._heard[-1]
        until = now if now - last > _SPAN / 2 else last  # the next word is due only now and then
        return (done - before) / (until - since) if until > since else None

    def overall(self) -> float | None:
        """Bytes a second of the whole save, from its first word to its last. None: it was too short to say."""
        if not self._heard or (seconds := self._heard[-1][0] - self._first[0]) < _LEAST:
            return None
        return (self._heard[-1][1] - self._first[1]) / seconds

    def seconds_left(self, now: float) -> float | None:
        """Seconds that the rest needs. None: nobody can say."""
        rate = self.rate(now)
        return (self.total - self.done) / rate if rate and self.total else None
