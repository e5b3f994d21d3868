"""What Prometheus is told of an agent (`--metrics-port`): numbers that only look, and never hold anybody up.

The loop owns the state and counts (`recorder`, pure); after each event it leaves an immutable `Snapshot`. A scrape reads
the newest one on a thread of its own (`http`) and makes samples of it (`collector`): no lock, and no question to
the loop. So a scrape cannot delay a notice, and a reader that hangs cannot hang the agent.
"""

from __future__ import annotations
