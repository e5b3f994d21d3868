"""Faithful metadata services on loopback, for users who want to see a notice and for our own tests.

The law of this room: behave as the real service was observed to behave, its faults included. A simulator knows nothing of
the clients that are tested against it, so that both sides cannot share a mistake.
"""
