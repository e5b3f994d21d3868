"""The helper of alerts: a process beside the agent, for what the agent is too small for.

It reads JSON lines of its agent: incidents (a failure, a stall, an outcome), and every ten seconds a sample of the agent's
metrics. It adds what it reads of the machine, and evaluates rules. Then it logs, calls webhooks, runs the operator's command, and
writes records of failures to the store. The agent waits for none of it, and ends without it.

Read `rules` and `evaluation` first: what fires, and when. Both are pure. `receivers` makes the messages, and `sender` sends
them. `readings` reads the machine, and `records` writes to the store. `process` assembles it all.
"""
