"""The agent's metrics for Prometheus (`--metrics-port`). They only observe, and never delay the agent.

`definitions` is the table of all metrics, without Prometheus's library. The loop counts what happens (`recorder`, `processes`).
It sets the library's own objects (`series`), and a scrape reads them on a thread of its own (`http`). Both hold a lock only for
one number or for a copy of one metric's series. So a scrape cannot delay a notice, and a reader that hangs cannot block the agent.

A new metric is a row of `definitions`, and the line that sets it. It must be on the dashboard or in a rule of `spotguard.deploy`.
"""

from __future__ import annotations
