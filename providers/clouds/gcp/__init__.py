"""Compute Engine's notices. `metadata` sends requests, `long_poll` waits for changes. `preempted`, `maintenance` and
`upcoming` each read one key, on `source`.
"""
