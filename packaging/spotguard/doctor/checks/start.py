"""Whether `spotguard run` would start with the words that were given, by what `run` itself asks (`agent.preflight`)."""

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

#: Seconds for the answer of who has the port; and bytes of it that are read.
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
    """A line for each thing that would be refused, all at once.

    Args:
        command: that was given; empty where none was.
        running: asks for the run ids of those that are meant and run here now.
    """

    def started() -> bool:
        """Who asks beside the job says the job's own words: its port is taken, by itself."""
        whose = None if options.metrics_port is None else _whose(options.metrics_port, clock)
        return whose is not None and whose in running()

    def asked() -> tuple[str | None, list[SpotguardError]]:
        return found_at(command, env), list(refusals(options, command, env, uid, clock, started=started))

    try:
        program, refused = within(STEP, clock, asked, "start")
    except TimeoutError as late:  # a file server that is gone
        found = f"a folder of the notice file, the socket or the command: {late}"
        yield fails("start", found, "look at their file systems (df, mount)", program=None)
        return
    facts: dict[str, Any] = {"program": program}
    for error in refused:
        found, advice = parted(error)
        if not advice:  # of a line without a semicolon it is what follows the last colon
            found, _, advice = found.rpartition(": ")
        yield fails("start", found, advice, **facts)
    if not refused:
        named = f"; {command[0]} is {program}" if command else ""
        yield ok("start", f"`run` takes these options{named}", **facts)


def _whose(port: int, clock: Clock) -> str | None:
    """The run whose metrics are read at this port; None where nobody answers, or somebody else does."""

    def ask() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWERS)
        try:
            connection.request("GET", "/metrics?name[]=spotguard_agent_info")
            return connection.getresponse().read(_MOST).decode(errors="replace")
        finally:
            connection.close()

    try:
        said = _WHOSE.search(within(_ANSWERS, clock, ask, "port"))
    except (OSError, http.client.HTTPException):  # TimeoutError too: what does not speak HTTP is no agent's
        return None
    return None if said is None else said[1]
