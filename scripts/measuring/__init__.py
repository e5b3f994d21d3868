"""The measures of `scripts/measures`.

`sources` reads a tree or a revision, and counts lines. `places` finds branches, threads and readers of the environment in
the syntax. `runs` plays the prescribed runs, and `trace` counts what they passed.
"""
