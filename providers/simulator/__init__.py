"""Faithful metadata services on loopback, for users who want to see a notice and for our own tests.

The law of this room: behave as the real service was seen to behave, its faults included. It knows nothing of
the clients that will be tested against it, so that a mistake is not made on both sides alike.
"""
