"""`python -m benchmarks.agreeing RANKS ROUNDS`: ranks that agree again and again; prints the seconds of each round.

Each rank is a fork with a mailbox and a thread that waits for what it hears, as a saver's does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from typing import cast

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.events import BackgroundEvent
from spotguard.hooks.consensus.stores.connection import JobStore
from spotguard.hooks.consensus.stores.second import BesideStore
from spotguard.hooks.consensus.vote import Vote
from spotguard.providers.clock import SystemClock

#: Seconds in which anything here is done, or is broken.
_PATIENCE = 30.0
#: Rounds before those that count: connections, and code that runs for the first time.
_WARM = 3


def rank(index: int, ranks: int, port: int, rounds: int) -> None:
    """One rank's life; the first one prints."""
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    channel = Channel.join(
        cast(JobStore, store),
        index,
        ranks,
        "here",
        SystemClock(),
        meet=lambda _: b"agreeing",
        second=BesideStore(store, ranks),
    )
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()
    channel.listen(lambda epoch, call, standing: heard.put(epoch))
    for turn in range(_WARM + rounds):
        channel.meetings.gather(b"", _PATIENCE)
        began = time.monotonic()
        if index == 0:
            channel.call(BackgroundEvent(), lambda: _PATIENCE)
        decision = channel.agree(
            heard.get(timeout=_PATIENCE), Vote(index, turn), lambda: _PATIENCE, lambda: False
        )
        if decision.step != turn:
            raise RuntimeError(f"rank {index} was told {decision}")
        ends = [float(each) for each in channel.meetings.gather(str(time.monotonic()).encode(), _PATIENCE)]
        if index == 0 and turn >= _WARM:
            print(json.dumps(max(ends) - began), flush=True)
    channel.close()


def main() -> None:
    ranks, rounds = int(sys.argv[1]), int(sys.argv[2])
    pids, (reading, writing) = [], os.pipe()
    for index in range(ranks):
        pid = os.fork()
        if pid == 0:
            port = int.from_bytes(os.read(reading, 2))
            rank(index, ranks, port, rounds)
            os._exit(0)
        pids.append(pid)
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writing, host.port.to_bytes(2) * ranks)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


if __name__ == "__main__":
    main()
