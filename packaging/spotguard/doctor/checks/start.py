"""The check whether `spotguard run` would start with these options, by `run`'s own preflight (`agent.preflight`)."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from spotguard.agent.config.options import Options
from spotguard.agent.preflight import found_at, refusals
from spotguard.providers.clock import Clock
from spotguard.providers.errors import SpotguardError

from ..finding import Finding, fails, ok, parted
from ..timeouts import within
from .store import STEP

#: Seconds for an answer from the metrics port, and the most bytes to read of it.
_ANSWERS, _MOST = 2.0, 64 * 1024
_WHOSE = re.compile(r'^spotguard_agent_info\{[^}]*\brun_id="([^"]+)"', re.MULTILINE)


def look(
    options: Options,
    command: Sequence[str],
    running: Callable[[], Collection[str]],
    env: Mapping[str, str],
    uid: int,
    clock: Clock,
) -> Iterator[Finding]:
    """Yield one finding for each thing that `run` would refuse, all at once.

    Args:
        options: the options to check.
        command: the command that was given; empty if none was.
        running: returns the ids of the selected runs that run here now.
        env: the environment of the command.
        uid: the user who would start the run.
        clock: times the requests.
    """

    def started() -> bool:
        """Report whether the job itself has the metrics port, because the user checks a running job with its own options."""
        whose = None if options.metrics_port is None else _whose(options.metrics_port, clock)
        return whose is not None and whose in running()

    def asked() -> tuple[str | None, list[SpotguardError]]:
        return found_at(command, env), list(refusals(options, command, env, uid, clock, started=started))

    try:
        program, refused = within(STEP, clock, asked, "start")
    except TimeoutError as late:  # a file server that does not answer
        found = f"a directory of the notice file, the socket or the command: {late}"
        yield fails("start", found, "look at their file systems (df, mount)", program=None)
        return
    facts: dict[str, Any] = {"program": program}
    for error in refused:
        found, advice = parted(error)
        if not advice:  # in a line without a semicolon the advice follows the last colon
            found, _, advice = found.rpartition(": ")
        yield fails("start", found, advice, **facts)
    if not refused:
        named = f"; {command[0]} is {program}" if command else ""
        yield ok("start", f"`spotguard run` accepts these options{named}", **facts)


def _whose(port: int, clock: Clock) -> str | None:
    """Return the id of the run whose metrics this port serves; None if there is no answer, or another program's."""

    def ask() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWERS)
        try:
            connection.request("GET", "/metrics?name[]=spotguard_agent_info")
            return connection.getresponse().read(_MOST).decode(errors="replace")
        finally:
            connection.close()

    try:
        match = _WHOSE.search(within(_ANSWERS, clock, ask, "port"))
    except (OSError, http.client.HTTPException):  # also TimeoutError; an agent's port would speak HTTP
        return None
    return None if match is None else match[1]
