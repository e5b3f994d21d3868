"""A launcher as torchrun is one: it stands over the training script, and when that is killed it starts it again.

It has loaded torch and the store's SDK before, so that a life of the training script costs a fork and not three seconds; `again` on
stdin begins the next life after one has ended, which is said on stdout: `ended STATUS`.
"""

from __future__ import annotations

import logging
import os
import sys

import train  # type: ignore[import-not-found]  # the script beside this one

from spotguard.providers.stores.factory import open_store


def _line() -> bytes | None:
    """The next line from where the last reader was killed; None where no more come."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line if line or byte else None


def main(steps: int) -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    open_store(os.environ["SPOTGUARD_STORE"])  # sends nothing, and starts no thread
    while (said := _line()) is not None:
        if said != b"again":
            continue  # "free", or its rest: it was told to a life that was killed before it had read it to the end
        if not (pid := os.fork()):
            train.train(steps)
            sys.stdout.flush()
            sys.exit(0)
        train.tell(f"life {pid}")
        _, status = os.waitpid(pid, 0)
        train.tell(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--steps") + 1]))
