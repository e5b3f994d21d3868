"""Decisions only: no I/O, no thread, no clock. `machine` takes an event and returns actions; `preemption` and `session` are its data."""
