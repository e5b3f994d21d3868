"""The coordination of the training thread, the saver thread and the other ranks.

`gate_rule` is the rule by which training stops, pure; `gate` applies it to the training thread. Requests come from the agent
(`agent_session`), the schedule or the script. `save_requests` queues them, `manual_saves` pairs saves by hand with the first
rank's calls, and `saver` carries out one request after the other. `quiesce` brings the state to a standstill. In a job of several
ranks it does so through `ranks`. `report` tells the agent how a save went. `ending` holds a SIGTERM, saves at an error, and ends
the process. `losses` makes checkpoints suspect whose losses are not finite.
`callback` is `on_notice`, for scripts that save by themselves.
"""
