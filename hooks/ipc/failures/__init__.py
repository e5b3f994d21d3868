"""Failures of training as its own process sees them, for its agent.

A stall: `thread_place` reads where the training thread is, `progress` finds for how long it stands still, `phase_times` knows how
long that may be, and `flight_recorder` reads the collective that waits. An error: `diagnosis` finds its class.
"""
