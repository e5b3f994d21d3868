"""The command that a scenario guards: a hook's end of the socket alone, which dates what the agent tells it.

It is the hook's own client, without a training process around it: what happens from there on is `first_byte`'s matter.
Each word of the agent is one line, `preempt` or `checkpoint` and the instant (CLOCK_MONOTONIC is one for all processes).
"""

from __future__ import annotations

import os
import sys
import time

from spotguard.hooks.ipc import protocol
from spotguard.hooks.ipc.client import SocketClient


def main() -> None:
    def hear(message: protocol.Message) -> None:
        now = time.monotonic()
        if isinstance(message, protocol.Preempt):
            print(f"preempt {now}", flush=True)
            client.send(protocol.Delivered(message.id, now))
            client.send(protocol.Committed(message.id, 1, 0, 0.0, "", now))
        elif isinstance(message, protocol.CheckpointNow):
            print(f"checkpoint {now}", flush=True)

    client = SocketClient(
        os.environ["SPOTGUARD_SOCKET"],
        hello=lambda: protocol.Register(os.getpid(), "scenario", "hearer", checkpoints=True),
        on_message=hear,
        position=lambda: protocol.Position(step=0, mode="callback"),
    )
    client.start()
    client.wait_answered(10.0)
    print("ready", flush=True)
    sys.stdin.read()  # until the agent's SIGTERM, or the end of the benchmark, which holds the other end


if __name__ == "__main__":
    main()
