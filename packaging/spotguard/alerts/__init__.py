"""The helper of alerts: a process beside the agent, for what the agent is too small for.

It reads JSON lines of its agent, each an event: a failure, a stall, an outcome, a source that went blind. It adds the kernel's log
and what it reads of the machine. From these it makes incidents, logs them, posts them to webhooks, runs the operator's command, and
writes records of failures to the store. The agent waits for none of it, and ends without it. Rules on numbers are Prometheus's.

Read `incidents` first: the table of what is an incident, and when it begins and ends. It is pure. `receivers` makes the messages,
and `sender` sends them. `readings` reads the machine, and `records` writes to the store. `process` assembles it all.
"""
