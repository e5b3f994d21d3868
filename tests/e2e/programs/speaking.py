"""A training process as its agent sees one, without tensors: the real client, the real handler of SIGTERM, and orders instead of steps.

Orders are lines: of stdin, or of the FIFO `rank-N` in its folder if there is one. An answer to a notice comes by an order alone.

    step N             so many steps are done
    commit N           the save that was asked for is committed at step N
    fail WORDS         that save is not
    error NAME N       the error NAME ends training at step N, with exit code 1
    call GONE MEET     another machine of the job was noticed
    end                good-bye, and exit code 0

It prints what it sees, one JSON object a line: `ready`, each message of the agent by its type, and `SIGTERM` with the handler's state.
With the word `spawn` it starts two of itself first, as `mp.spawn` does, and waits for them.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import sys
import time

from spotguard.hooks.control.ending.sigterm import SigtermHold, hold_sigterm, redeliver
from spotguard.hooks.ipc import protocol
from spotguard.hooks.ipc.client import SocketClient

#: Bytes of its state.
NBYTES = 1000


class Speaker:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.hold = SigtermHold.GUARDED
        self.notice = ""
        self.step = -1
        self.client = SocketClient(
            os.environ["SPOTGUARD_SOCKET"],
            hello=self.hello,
            on_message=self.hear,
            position=self.position,
        )

    def hello(self) -> protocol.Register:
        run_id, store = os.environ["SPOTGUARD_RUN_ID"], os.environ["SPOTGUARD_STORE"]
        name = os.path.basename(__file__)
        return protocol.Register(os.getpid(), run_id, name, store, self.rank, self.world, NBYTES)

    def position(self) -> protocol.Position | None:
        return None if self.step < 0 else protocol.Position(self.step, interval=3600.0, restored_age=1.0)

    def saw(self, what: str, **about: object) -> None:
        os.write(1, json.dumps({"rank": self.rank, "saw": what, **about}).encode() + b"\n")

    def look(self, signum: int) -> SigtermHold:
        self.saw("SIGTERM", state=self.hold.value)
        return self.hold

    def hear(self, message: protocol.Message) -> None:
        if isinstance(message, protocol.Preempt):
            self.notice, self.hold = message.id, SigtermHold.SAVING
            self.client.send(protocol.Delivered(message.id, time.monotonic()))
        self.saw(message.type, **dataclasses.asdict(message))  # type: ignore[call-overload]
        if isinstance(message, protocol.Withdrawn | protocol.Resume):
            self.hold = SigtermHold.GUARDED
            redeliver()
        elif isinstance(message, protocol.Leave):
            os._exit(message.code)

    def train(self) -> int:
        """On the main thread, as training would be: that is where handlers of signals run."""
        hold_sigterm(self.look)
        self.client.start()
        self.client.wait_answered(100)
        fifo = f"rank-{self.rank}"
        # Open to write, too: so it has no end while nobody writes.
        orders = os.open(fifo, os.O_RDWR) if os.path.exists(fifo) else 0
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.saw(
            "ready", pid=os.getpid(), parent=os.getppid(), restart=int(again), refused=self.client.refused
        )
        code = None
        while code is None:
            code = self.obey(*read_line(orders))
        self.client.close()
        return code

    def obey(self, word: str = "end", *words: str) -> int | None:
        """Carry the order out; return the exit code if that is the end."""
        now = time.monotonic()
        if word == "step":
            self.step = int(words[0])
            self.client.tell_position()
        elif word == "commit":
            step, url = int(words[0]), f"{os.environ['SPOTGUARD_STORE']}/x"
            self.hold = SigtermHold.LEAVING
            self.client.send(protocol.Committed(self.notice, step, NBYTES, 0.1, url, now))
        elif word == "fail":
            self.hold = SigtermHold.LEAVING
            self.client.send(protocol.Failed(self.notice, " ".join(words)))
        elif word == "error":
            name, step = words[0], int(words[1])
            place = "speaking.py:1 in train"
            self.client.send(
                protocol.TrainingFailed(
                    "program", name, "on purpose", place, "forward", name, step, stays=True
                )
            )
            return 1
        elif word == "call":
            gone, meet = words
            source = "aws spot/instance-action"
            self.client.send(
                protocol.PeerPreempted("x", "terminate", source, 118.0, now, gone=gone, meet=meet)
            )
        elif word == "end":
            return 0
        else:
            raise ValueError(word)
        return None


def read_line(orders: int) -> list[str]:
    """Return the words of the next line, read byte by byte: what follows may be meant for the next life."""
    line = b""
    while (byte := os.read(orders, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode().split()


def main(rank: int, world: int) -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    sys.exit(Speaker(rank, world).train())


if __name__ == "__main__":
    if sys.argv[1:] == ["spawn"]:
        children = [multiprocessing.get_context("spawn").Process(target=main, args=(n, 2)) for n in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    else:
        main(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
