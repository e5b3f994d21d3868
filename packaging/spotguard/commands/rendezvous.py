"""Stands before a torchrun: on a machine that was not there when the others moved their rendezvous, it goes where they are.

The `run` of each machine that stays moves the endpoint of its own command. Who replaces the one that was taken has the
command as it was. So the newest record of the job's store is asked where the ranks have met, at each start; if somebody
answers there, the command meets there. Whatever fails, it is started as it is.

A process of its own, which ends by becoming the command: `run` holds no store.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence

from spotguard.agent import executable, launchers

#: Seconds that the store has to say it, and that somebody has to answer.
_STORE, _ANSWER = 5.0, 2.0
#: torchrun's own, where an endpoint has none.
_PORT = 29400
_MODULE = "spotguard.commands.rendezvous"


def asking_first(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The command that asks first, where that could change anything: it is a torchrun that meets at a place which others can
    reach too."""
    words, asked = list(command), launchers.endpoint(command)
    host, port = launchers.host_and_port(asked)
    if not host or _is_here(host) or port == "0":
        return words
    try:
        executable.find(words[0], env)
    except executable.CommandError:
        return words  # who starts it says why it cannot be
    # -P: nothing of the folder that we are in is taken for a module of ours.
    return [sys.executable, "-P", "-m", _MODULE, asked, *words]


def _is_here(host: str) -> bool:
    return host.lower() in ("localhost", "::1") or host.startswith("127.")


def main(asked: str, command: list[str]) -> None:
    """Become the command.

    Raises:
        CommandError: it cannot be executed.
    """
    from spotguard.hooks import rendezvous

    at = launchers.endpoint(command)
    if at == asked and (found := _found(asked)):
        command, at = launchers.meeting_at(command, found), found
        _say(f"this job meets at {at} by now, and no more at {asked}: joining it there")
    os.environ.pop(rendezvous.VARIABLE, None)
    if at != asked:
        os.environ[rendezvous.VARIABLE] = rendezvous.variable(asked, at)
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # what Python ignores, the next one would ignore too
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise executable.refusal(command[0], command[0], error) from error


def _say(line: str) -> None:
    os.write(2, f"spotguard: {line}\n".encode())


def _found(asked: str) -> str:
    """Where somebody answers, by the newest record; "" for nowhere else than at `asked`."""
    found: list[str] = []
    # A thread, which ends when the command begins: a store may hang in places that no timeout reaches.
    reader = threading.Thread(target=lambda: found.append(_recorded(asked)), daemon=True)
    reader.start()
    reader.join(_STORE)
    return next((at for at in found if at and _answers(at)), "")


def _recorded(asked: str) -> str:
    from spotguard.hooks import rendezvous
    from spotguard.hooks.checkpoints.commit import newest_claim
    from spotguard.hooks.format.codec import decode_attempt
    from spotguard.hooks.format.keys import attempt_key
    from spotguard.providers.errors import SpotguardError
    from spotguard.providers.stores.opening import open_store

    try:
        run_id = os.environ["SPOTGUARD_RUN_ID"]
        store = open_store(os.environ["SPOTGUARD_STORE"])
        if not (newest := newest_claim(store, run_id, timeout=_STORE)):
            return ""
        key = attempt_key(run_id, newest)
        return rendezvous.moved_to(decode_attempt(store.get(key, timeout=_STORE), key).info, asked)
    except (SpotguardError, KeyError):
        return ""  # training will say what is wrong with its store


def _answers(at: str) -> bool:
    host, port = launchers.host_and_port(at)
    try:
        with socket.create_connection((host, int(port or _PORT)), _ANSWER):
            return True
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except executable.CommandError as refused:
        _say(f"error: {refused}")
        sys.exit(refused.exit_code)
