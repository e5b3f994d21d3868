"""A rank without tensors: registers by the real client, holds SIGTERM by the real handler, and answers as a hook does.

It does what is written to the FIFO `rank-N` in its folder, line by line: `call GONE MEET`, `commit STEP`, `end`. With the word
`spawn` it starts two of itself first, as `mp.spawn` does, and waits for them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from spotguard.hooks.control.ending.sigterm import SigtermHold, hold_sigterm, redeliver
from spotguard.hooks.ipc.client import SocketClient
from spotguard.hooks.ipc.protocol import (
    Committed,
    Delivered,
    Leave,
    Message,
    PeerPreempted,
    Preempt,
    Register,
    Withdrawn,
)


class Rank:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.hold = SigtermHold.GUARDED
        self.notice = ""
        self.code = 0
        self.client = SocketClient(
            os.environ["SPOTGUARD_SOCKET"],
            hello=lambda: Register(
                os.getpid(), "job", "ranked.py", os.environ["SPOTGUARD_STORE"], rank, world
            ),
            on_message=self.hear,
            position=lambda: None,
        )

    def tell(self, words: str) -> None:
        os.write(1, f"rank {self.rank} {words}\n".encode())

    def look(self) -> SigtermHold:
        self.tell(f"SIGTERM while {self.hold.value}")
        return self.hold

    def hear(self, message: Message) -> None:
        if isinstance(message, Preempt):
            self.notice, self.hold = message.id, SigtermHold.SAVING
            self.client.send(Delivered(message.id, time.monotonic()))
            self.tell(f"told {message.kind}")
        elif isinstance(message, Withdrawn):
            self.hold = SigtermHold.GUARDED
            redeliver()
        elif isinstance(message, Leave):
            self.tell("leaves")
            os._exit(message.code)

    def obey(self) -> None:
        """On the main thread, as training would be: that is where handlers of signals run."""
        hold_sigterm(self.look)
        self.client.start()
        self.client.wait_answered(30)
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        fifo = os.open(f"rank-{self.rank}", os.O_RDWR)  # to write, too: so it has no end while nobody writes
        with os.fdopen(fifo, "r", closefd=True) as orders:
            self.tell(f"ready {os.getpid()} {os.getppid()} restart {again} refused '{self.client.refused}'")
            for what, *words in map(str.split, orders):
                now = time.monotonic()
                if what == "call":
                    source, (gone, meet) = "aws spot/instance-action", words
                    self.client.send(
                        PeerPreempted("x", "terminate", source, 118.0, now, gone=gone, meet=meet)
                    )
                elif what == "commit":
                    self.client.send(Committed(self.notice, int(words[0]), 1000, 0.1, "file:///s/x", now))
                    self.hold = SigtermHold.LEAVING
                else:
                    break
        self.client.close()


def main(rank: int, world: int) -> None:
    Rank(rank, world).obey()


if __name__ == "__main__":
    if sys.argv[1:] == ["spawn"]:
        children = [multiprocessing.get_context("spawn").Process(target=main, args=(n, 2)) for n in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    else:
        main(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
