"""The queries of the dashboard as Grafana would send them, and a free port for an agent to be scraped at, as Prometheus does."""

from __future__ import annotations

import json
import math
import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from tests.servers.prometheus import Prometheus

#: Metrics that need what the machine of a test has not: a GPU, a failure, a limit on its processors, `--verify-every`.
_NOT_HERE = (
    "spotguard_gpu_",
    "spotguard_failures_total",
    "spotguard_cpu_throttled_ratio",
    "spotguard_verifications_total",
)


@contextmanager
def free_port() -> Iterator[int]:
    """One that stays ours: bound and not listening, so that whoever sets SO_REUSEADDR may listen (socket(7))."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def scraped(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (files("spotguard.deploy") / "template-files" / "dashboard.json").read_text()
    )
    return found


def queries() -> Iterator[tuple[str, bool]]:
    """Each query of each panel with every variable at "All", and whether it asks for one instant."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield filled(target["expr"]), bool(target.get("instant"))


def filled(expression: str) -> str:
    text = expression.replace("$__rate_interval", "1m")
    return re.sub(r"\$(job|instance|run_id)\b", ".*", text)


def unanswered(prometheus: Prometheus, seconds: float | None = None) -> list[str]:
    """The queries of the dashboard that give no number: now, or at no time of the last seconds."""
    return [
        expression
        for expression, instant in queries()
        if not any(name in expression for name in _NOT_HERE)
        and not any(
            math.isfinite(value)
            for value in _values(prometheus, expression, instant and seconds is None, seconds or 60.0)
        )
    ]


def _values(prometheus: Prometheus, expression: str, instant: bool, seconds: float) -> Iterator[float]:
    if instant:
        yield from (float(sample["value"][1]) for sample in prometheus.query(expression))
    else:
        for series in prometheus.query_range(expression, seconds):
            yield from (float(value) for _, value in series["values"])
