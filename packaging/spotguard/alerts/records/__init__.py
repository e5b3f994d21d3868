"""The records in a run's store that no training process can write. Each module is a process of its own, because it loads a store.

`failure_record` is for a rank that was killed, and `held_stacks` for one in which no Python runs.
"""
