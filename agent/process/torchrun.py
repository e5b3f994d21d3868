"""What is known of launchers: which command is torchrun, and what it has to be told so that a save survives it.

torchrun that gets SIGTERM, or loses its rendezvous (0.4 s after the machine that held it is gone: seen), passes SIGTERM on
to its workers and kills them 30 s later. A worker that saves holds SIGTERM, and needs as long as its window, or, on a
machine that stays, as long as its state takes.

Its rendezvous' store is also the workers' (torch 2.13), with the keys of every round before: a machine that joins, and one
that starts again where the store has stayed, find the addresses of those that are gone (seen: refused for ever).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..core.peers import PATIENCE

#: Seconds (pytorch#172596, of March 2026: an older one does not read it). `--shutdown-timeout` beats it. Where a worker
#: of the same machine dies, or another machine joins, torchrun's 30 s hold all the same (pytorch#192815).
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
#: "1": rank 0's worker makes a store of its own for each start. Nothing to a rendezvous that is static.
UNSHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
#: By then the agent has ended all of them itself.
_AFTER = 60.0

#: Where torchruns meet. What `torch.distributed.run` takes with a hyphen it takes with an underline too.
_ENDPOINT = ("--rdzv-endpoint", "--rdzv_endpoint")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def is_torchrun(command: Sequence[str]) -> bool:
    """Whether one of these words starts torchrun: by its name, or as a module, behind whatever stands before it (`env`,
    `numactl`). A script that starts it is not looked into."""
    for at, word in enumerate(command):
        if os.path.basename(word) == "torchrun":
            return True
        if word == "-m" and command[at + 1 : at + 2] and command[at + 1] in _MODULES:
            return True
        if word.startswith("-m") and word[2:] in _MODULES:
            return True
    return False


def told(command: Sequence[str], window: float | None, env: Mapping[str, str]) -> dict[str, str]:
    """What a launcher is given by the environment, where nobody has said otherwise."""
    if not is_torchrun(command):
        return {}
    said = {SHUTDOWN_TIMEOUT: str(round(max(PATIENCE, window or 0.0) + _AFTER)), UNSHARED: "1"}
    return {name: value for name, value in said.items() if not env.get(name)}


def moved(command: Sequence[str], gone: frozenset[str], meet: str) -> list[str]:
    """The command with its rendezvous on `meet`, where it was on the machine that is `gone` (its names and addresses). Who
    is at home at `meet` hosts it then, as torchrun finds out for itself."""
    words = list(command)
    if not is_torchrun(words):
        return words
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option not in _ENDPOINT:
            continue
        if equals:
            words[at] = f"{option}={_elsewhere(value, gone, meet)}"
        elif at + 1 < len(words):
            words[at + 1] = _elsewhere(words[at + 1], gone, meet)
        break  # behind the script's name it would be an option of the script
    return words


def _elsewhere(endpoint: str, gone: frozenset[str], meet: str) -> str:
    host, colon, port = endpoint.rpartition(":") if not endpoint.endswith("]") else (endpoint, "", "")
    if not colon:
        host, port = endpoint, ""
    if host.strip("[]").lower() not in gone:
        return endpoint
    return (f"[{meet}]" if ":" in meet else meet) + colon + port
