"""The agent's metrics for Prometheus (`--metrics-port`). They only observe, and never delay the agent.

The loop owns the state and counts (`recorder`, pure). After each event the loop leaves an immutable `MetricsSnapshot`. A scrape
reads the newest snapshot on its own thread (`http`) and makes samples from it (`collector`). It takes no lock and asks the
loop nothing. So a scrape cannot delay a notice, and a reader that hangs cannot block the agent.
"""

from __future__ import annotations
