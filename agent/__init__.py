"""Beside the training process: watches for notices, signals the job, waits for its commit, exits.

The law of this room: stay small and never go silent. It may use the hooks' protocol and the providers' notices
and clock; it never imports what holds tensors, a store, or a cloud's SDK. Time is handed in; everything that
happens is an event on one queue.

Begin with `events` and `actions`: what happens, and what is done about it. `core` decides; `loop` hands it the events and does
the actions. `app` puts all together.
"""
