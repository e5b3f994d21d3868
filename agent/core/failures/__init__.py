"""Failures that are not preemptions, from what training processes say and the kernel counts. Pure rules, as in `core`."""
