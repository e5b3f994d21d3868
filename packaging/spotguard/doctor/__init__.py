"""The doctor: it checks whether this machine would save in time, and advises what to do if not.

Each module checks one thing and returns findings. `run` has their order, and `render` prints them on a terminal. Every wait
has a timeout: a request that may hang runs on a thread of its own.
"""
