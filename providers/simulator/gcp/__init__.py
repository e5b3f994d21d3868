"""Compute Engine's metadata server.

`tree` has its keys, `upcoming` host maintenance, `faults` its faults, `service` its answers, `cli` its flags.
"""
