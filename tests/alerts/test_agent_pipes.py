"""The pipe of the helper's reports: one that it takes in parts does not take the place of the next one."""

from __future__ import annotations

import json
import os

from spotguard.alerts.agent_pipes import AgentReports


def test_a_report_behind_a_cut_one_is_not_left_out() -> None:
    """The last one says for how long the helper has last things to do, and none comes after it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb") as reports, os.fdopen(writing, "wb") as end:
        to_agent = AgentReports(writing)
        long = {"firing": ["x" * 100_000]}
        to_agent.write(long)
        got = os.read(reading, 65536)
        to_agent.write({"busy": 60.0})
        end.close()
        assert [json.loads(line) for line in (got + reports.read()).splitlines()] == [long, {"busy": 60.0}]
