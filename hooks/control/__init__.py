"""The training thread, the saver thread and the other ranks: who waits for whom.

`gate_rule` is the rule by which training stops, pure; `gate` applies it to the training thread. Requests come from the agent
(`session`), the schedule or the script, and lie in `requests`; `saver` takes one after the other. `quiesce` brings the state to
a standstill, in a job of several ranks by `coordinator`. `report` tells the agent how it went, and `shutdown` ends the process.
"""
