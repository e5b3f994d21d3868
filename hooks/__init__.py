"""Inside the training process: step, agree, snapshot, write, commit, restore.

The law of this room: guarding changes nothing. Training with and without it is bit for bit the same, the
emergency path runs no collective, and nothing here talks to a metadata service. It may use the providers'
stores, clock, notices and errors. This file stays free of imports: the agent imports `hooks.protocol`
through it, and the agent must not load what holds tensors.
"""
