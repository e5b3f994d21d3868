"""The agent's decisions: no I/O, no thread, no clock. Events and the time go in, actions come out.

Read `state`, then `machine` (the table of states and events), then its parts: `session` (the registered processes), `notices`
(which notices are one, and which are upcoming), `preemption` (the active notice), `delivery`, `session_messages`, `peers` (notices
of other machines), `command`, `ending` and `failures`. `budget` is the arithmetic of a save's time.
"""
