"""The agent's log: one line for an event, for a person or for a machine."""

from __future__ import annotations

import io
import json
import logging
import os
import re

from spotguard.agent.telemetry import logs


def logged(*, json_log: bool) -> list[str]:
    stream = io.StringIO()
    handler = logs.configure(json_log=json_log, stream=stream)
    logger = logging.getLogger("spotguard.agent.test")
    try:
        logger.debug("not said")
        logger.info("seen with %.1f s left", 118.26)
        logger.warning("out of time", extra={"fields": {"outcome": {"id": "n1"}}})
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.exception("an error of the agent")
    finally:
        logs.remove(handler)
    return stream.getvalue().splitlines()


def test_a_person_reads_time_and_text_and_what_is_wrong() -> None:
    """`spotguard 12:03:04 text`; a level only from WARNING on."""
    first, second, *_ = logged(json_log=False)
    assert re.fullmatch(r"spotguard \d\d:\d\d:\d\d seen with 118\.3 s left", first)
    assert re.fullmatch(r"spotguard \d\d:\d\d:\d\d WARNING: out of time", second)


def test_a_machine_reads_one_object_a_line_with_what_the_event_carries() -> None:
    """With the outcome as it is in the file."""
    first, second, third = (json.loads(line) for line in logged(json_log=True))
    assert list(first)[:3] == ["@timestamp", "log.level", "message"]
    assert (first["log.level"], first["message"], first["log.logger"]) == (
        "info",
        "seen with 118.3 s left",
        "spotguard.agent.test",
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["@timestamp"])
    assert first["process.pid"] == os.getpid()
    assert second["spotguard"] == {"outcome": {"id": "n1"}}
    assert (third["error.type"], third["error.message"]) == ("ValueError", "two\nlines")
    assert third["error.stack_trace"].startswith("Traceback")


def test_nothing_stays_configured_after_it() -> None:
    """Handlers that were there stay: a `register` earlier in this process leaves one."""
    ours = logging.getLogger("spotguard")
    before = (list(ours.handlers), ours.propagate)
    logged(json_log=False)
    assert (ours.handlers, ours.propagate) == before
