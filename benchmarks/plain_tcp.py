"""What the link itself can carry: bytes by one plain TCP connection, and what that costs whoever sends them.

`python -m benchmarks.plain_tcp send|receive PORT MIB`, on the saver's machine, prints seconds and CPU seconds as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from .children import child, lines
from .link import Link
from .took import Took

Way = Literal["send", "receive"]
WAYS: tuple[Way, Way] = ("send", "receive")

_PIECE = 1 << 20


def carry(link: Link, way: Way, mib: int, folder: Path) -> Took:
    """Carry so many MiB from the saver's machine to the store's, or back."""
    with link.on("store"):
        listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        far = threading.Thread(target=_far_end, args=(listening, way, mib), name="far-end", daemon=True)
        far.start()
        with link.on("saver"):
            port = listening.getsockname()[1]
            words = ["-m", "benchmarks.plain_tcp", way, str(port), str(mib)]
            with child(words, cwd=folder, answers=True) as process:
                found = Took(mib * _PIECE, **json.loads(lines(process)[-1]))
        far.join()
    return found


def _far_end(listening: socket.socket, way: Way, mib: int) -> None:
    connection, _ = listening.accept()
    with connection:
        if way == "receive":
            _send(connection, mib)
        else:
            _receive(connection, mib)
        connection.sendall(b".")


def _send(connection: socket.socket, mib: int) -> None:
    view = memoryview(bytes(_PIECE))
    for _ in range(mib):
        connection.sendall(view)


def _receive(connection: socket.socket, mib: int) -> None:
    left, view = mib * _PIECE, memoryview(bytearray(_PIECE))
    while left:
        left -= connection.recv_into(view[: min(left, _PIECE)])


def main(way: str, port: int, mib: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        started, used = time.perf_counter(), time.process_time()
        (_send if way == "send" else _receive)(connection, mib)
        connection.recv(1)  # the far end has it all, or has said all
        spent, used = time.perf_counter() - started, time.process_time() - used
    print(json.dumps({"seconds": spent, "cpu": used}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
