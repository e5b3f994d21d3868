"""Checks of everything that `run` would refuse before it starts its command, for `spotguard doctor`.

Each check calls the code that `app` calls, so that the messages are the same. A check releases at once whatever it
opened, and never keeps a run from starting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..providers.clock import Clock
from ..providers.errors import SpotguardError
from .ipc import listener
from .ipc.paths import path_of, runtime_folder
from .process.program import CommandError, check_interpreter, find
from .sources.factory import own_sources

if TYPE_CHECKING:
    from .config.options import Options


def refusals(
    options: Options,
    command: Sequence[str],
    env: Mapping[str, str],
    uid: int,
    clock: Clock,
    *,
    started: Callable[[], bool],
) -> Iterator[SpotguardError]:
    """Yield every refusal, in the order in which `run` would meet them; nothing if `run` would start.

    Args:
        options: the options of that `run`.
        command: the program and its arguments. If it is empty, no program is searched for.
        env: the environment in which `run` would start.
        uid: the user who would run it.
        clock: the clock for the sources.
        started: return whether this run holds its metrics port already. It is called only after the port was found taken,
            because the run may start meanwhile.
    """

    def deadline() -> None:
        _close(replace(options, notice_file=None), clock)

    def notice_file() -> None:
        _close(replace(options, deadline=None), clock)

    def socket() -> None:
        if options.socket or options.run_id:
            listener.check(path_of(options.socket, options.run_id, env, uid), env, uid)
        else:  # a socket of any run id is in this directory
            listener.check_folder(runtime_folder(env, uid), env, uid)

    def metrics() -> None:
        if options.metrics_port is not None:
            from .telemetry.metrics import assembly

            try:
                assembly.check(options.metrics_port)
            except SpotguardError:
                if not started():
                    raise

    def program() -> None:
        if command:
            _program(command[0], env)

    asked: Sequence[Callable[[], None]] = (deadline, notice_file, socket, metrics, program)
    for one in asked:
        try:
            one()
        except SpotguardError as error:
            yield error


def found_at(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return the path of the command's program; None if the command has no program that could start."""
    try:
        return _program(command[0], env) if command else None
    except CommandError:  # `refusals` reports the reason
        return None


def _program(word: str, env: Mapping[str, str]) -> str:
    program = find(word, env)
    check_interpreter(word, program)
    return program


def _close(options: Options, clock: Clock) -> None:
    for source in own_sources(options, clock):
        source.close()
