"""A stderr that nobody reads."""

from __future__ import annotations

import os


class Full:
    """A pipe that takes nothing more until it is read."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self.size = 0
        try:
            while True:
                self.size += os.write(self.writing, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(self.writing, True)

    def empty(self) -> bytes:
        data = b""
        while len(data) < self.size:
            data += os.read(self.reading, self.size - len(data))
        return data

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)
