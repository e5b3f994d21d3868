"""The doctor: one look at everything that decides whether this machine would save in time, and what to do where not.

Each module looks at one thing and returns findings; `run` has the order, `render` the words on a terminal. Nothing here
waits longer than it says: whatever may hang is asked on a thread of its own.
"""
