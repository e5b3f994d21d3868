"""The coordination of the training thread, the saver thread and the other ranks.

`gate_rule` is the rule by which training stops, pure; `gate` applies it to the training thread. Requests come from the agent
(`session`), the schedule or the script. `requests` queues them, `manual` pairs saves by hand with the first rank's calls, and
`saver` carries out one request after the other. `quiesce` brings the state to a standstill. In a job of several ranks it does so
through `ranks`. `report` tells the agent how a save went. `sigterm` holds a SIGTERM, and `shutdown` ends the process.
`callback` is `on_notice`, for scripts that save by themselves.
"""
