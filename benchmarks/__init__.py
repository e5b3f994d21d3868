"""Figures, measured: `make bench`, or `python -m benchmarks NAME ...` for some of them.

Nothing here asserts a time: a figure that is missed is a line in the table, not a failure.
"""
