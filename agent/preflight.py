"""What a `run` would refuse before it starts its command, for who asks beforehand (`spotguard doctor`).

Each thing is refused by the code that `app` calls, in its words. What is made for that is let go of at once, and keeps no
run from starting meanwhile.
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
    """Every refusal, in the order in which `run` would meet them; none where it would start.

    Args:
        command: empty: none is looked for.
        started: whether this run has the port of its metrics already; asked when the port was found taken, and not before:
            it may start meanwhile.
    """

    def deadline() -> None:
        _close(replace(options, notice_file=None), clock)

    def notice_file() -> None:
        _close(replace(options, deadline=None), clock)

    def socket() -> None:
        if options.socket or options.run_id:
            listener.check(path_of(options.socket, options.run_id, env, uid), env, uid)
        else:  # whatever the run will be called, its socket lies there
            listener.check_folder(runtime_folder(env, uid), env, uid)

    def metrics() -> None:
        if options.metrics_port is not None:
            from .telemetry.metrics import opening

            try:
                opening.check(options.metrics_port)
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
    """The program of the command; None where it has none that could be started."""
    try:
        return _program(command[0], env) if command else None
    except CommandError:  # `refusals` says why
        return None


def _program(word: str, env: Mapping[str, str]) -> str:
    program = find(word, env)
    check_interpreter(word, program)
    return program


def _close(options: Options, clock: Clock) -> None:
    for source in own_sources(options, clock):
        source.close()
