"""Decisions only: no I/O, no thread, no clock. Events and the time go in, actions come out.

Read `state`, then `machine` (the table of states and events), then the parts it is composed of: `session` (who is registered),
`notices` (which are one and the same), `preemption` (the active one), `delivery`, `answers`, `peers`, `command`, `shutdown` and `service`.
"""
