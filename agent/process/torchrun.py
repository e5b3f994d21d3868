"""Launchers: which command is torchrun, and the environment that keeps torchrun from killing a worker that saves.

torchrun passes SIGTERM on to its workers if it gets SIGTERM itself, or if it loses its rendezvous. (Seen: it loses the
rendezvous 0.4 s after the hosting machine is gone.) It kills the workers 30 s later. A worker that saves holds SIGTERM. It
needs up to its window, or, on a machine that stays, as long as its state takes.

The rendezvous' store is also the workers' store (torch 2.13), and it keeps the keys of every earlier round. So a machine
that joins finds the addresses of machines that are gone. A machine that starts again finds them too, if the store has stayed
(seen: connections refused for ever).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ..core.peers import PATIENCE

#: Seconds until torchrun kills its workers (pytorch#172596, of March 2026: an older torch does not read the variable).
#: `--shutdown-timeout` overrides it. If a worker of the same machine dies, or another machine joins, torchrun still uses its
#: 30 s (pytorch#192815).
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
#: "1": rank 0's worker makes its own store for each start. It has no effect on a static rendezvous.
UNSHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
#: Seconds added to the longest save. The agent itself has ended all workers by then.
_AFTER = 60.0

#: Options with their shortest abbreviations: `torch.distributed.run` takes each that is unique, with hyphens or with underscores;
#: and the variables that it reads where an option is not given.
_ENDPOINT, _MAX_RESTARTS = ("--rdzv-endpoint", "--rdzv-e"), ("--max-restarts", "--max-re")
_BACKEND, _NODE_RANK = (
    ("--rdzv-backend", "--rdzv-b"),
    (("--node-rank", "--nod"), ("--machine-rank", "--machine-r")),
)
_MASTER = (("--master-addr", "--master-a"), ("--main-process-ip", "--main-process-i"))
_ENDPOINT_VARIABLE, _MAX_RESTARTS_VARIABLE = "PET_RDZV_ENDPOINT", "PET_MAX_RESTARTS"
#: `accelerate launch` runs torchrun's agent in its own process.
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
#: The options of torchrun (torch 2.13) that take no value, with hyphens.
_FLAGS = frozenset(
    {"-m", "--module", "--no-python", "--run-path", "--standalone", "--use-env", "--virtual-local-rank"}
)


def is_torchrun(command: Sequence[str]) -> bool:
    """Return whether the command starts torchrun or `accelerate launch`, also behind `env`, `numactl` and the like.

    A script that starts torchrun is not recognised.
    """
    return _behind_launcher(command) is not None


def _behind_launcher(command: Sequence[str]) -> int | None:
    """Return the index of the first word behind the launcher's name; None if the command has no such launcher."""
    for at, word in enumerate(command):
        name, after = os.path.basename(word), "".join(command[at + 1 : at + 2])
        if name == "torchrun" or (word.startswith("-m") and word[2:] in _MODULES):
            return at + 1
        if (name == "accelerate" and after == "launch") or (word == "-m" and after in _MODULES):
            return at + 2
    return None


def _options(command: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Yield each option of the launcher's own: its name with hyphens, the index of the word with its value, and the value."""
    before = ""  # the option to which the next word may belong
    for at in range(_behind_launcher(command) or len(command), len(command)):
        word = command[at]
        if not word.startswith("-"):
            if not before or word.endswith(".py"):
                return  # the script's name: its own options follow
            yield before, at, word
            before = ""
            continue
        if word == "--" or (word.startswith("-m") and len(word) > len("-m")):
            return  # the script follows, or is a part of the word, as in `-mpackage.train`
        name, equals, value = word.partition("=")
        option = name.replace("_", "-")
        if equals:
            yield option, at, value
        before = "" if equals or option in _FLAGS else option


def _is(option: str, of: tuple[str, str]) -> bool:
    name, shortest = of
    return option.startswith(shortest) and name.startswith(option)


def restarts(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether the command is a torchrun that starts its workers again after a failure of one."""
    numbers = [value for option, _, value in _options(command) if _is(option, _MAX_RESTARTS)]
    variable = env.get(_MAX_RESTARTS_VARIABLE, "0")
    return is_torchrun(command) and [variable, *numbers][-1].strip() not in ("", "0")


def told(command: Sequence[str], window: float | None, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun needs and that `env` does not set; nothing for another command."""
    if not is_torchrun(command):
        return {}
    defaults = {SHUTDOWN_TIMEOUT: str(round(max(PATIENCE, window or 0.0) + _AFTER)), UNSHARED: "1"}
    return {name: value for name, value in defaults.items() if not env.get(name)}


def moved(
    command: Sequence[str], env: Mapping[str, str], gone: frozenset[str], meet: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment with the rendezvous moved to `meet`, if it was on the machine that is gone.

    The machine at `meet` hosts the rendezvous then; torchrun detects that itself.

    Args:
        command: the program and its arguments.
        env: its environment.
        gone: the names and addresses of the machine that is gone.
        meet: the new host.
    """
    words, env = list(command), dict(env)
    if not is_torchrun(words) or static_on(words, env, gone):
        return words, env
    for option, at, value in _options(command):
        if _is(option, _ENDPOINT):
            words[at] = words[at].removesuffix(value) + _elsewhere(value, gone, meet)
    if endpoint := env.get(_ENDPOINT_VARIABLE):
        env[_ENDPOINT_VARIABLE] = _elsewhere(endpoint, gone, meet)
    return words, env


def static_on(command: Sequence[str], env: Mapping[str, str], gone: frozenset[str]) -> str:
    """Return the address of a static rendezvous, if it was on the machine that is gone; "" otherwise.

    Only the node of rank 0 hosts it. No machine that stays has this rank, so the replacement has to come back under the address.
    """
    given = [*_options(command)] if is_torchrun(command) else []
    backends = [value for option, _, value in given if _is(option, _BACKEND)]
    if not given or [env.get("PET_RDZV_BACKEND") or "static", *backends][-1] != "static":
        return ""
    of = [
        *_MASTER,
        *([_ENDPOINT] if any(_is(option, rank) for option, *_ in given for rank in _NODE_RANK) else []),
    ]
    hosts = [value for option, _, value in given if any(_is(option, each) for each in of)]
    return next(
        (host for host in [*hosts, env.get("PET_MASTER_ADDR", "")] if _elsewhere(host, gone, "") != host), ""
    )


def _elsewhere(endpoint: str, gone: frozenset[str], meet: str) -> str:
    host, colon, port = endpoint.rpartition(":") if not endpoint.endswith("]") else (endpoint, "", "")
    if not colon:
        host, port = endpoint, ""
    if host.strip("[]").lower() not in gone:
        return endpoint
    return (f"[{meet}]" if ":" in meet else meet) + colon + port
