"""Compute Engine's notices. `metadata` asks, `long_poll` waits; `preempted`, `maintenance` and `upcoming` read one key each, on `source`."""
