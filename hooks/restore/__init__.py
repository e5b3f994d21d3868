"""Restore: load the newest complete checkpoint from a store into memory, or the next older one, never a mix.

Begin to read at `startup`, which claims an attempt. It then calls `restore` in a job of one process, and `collective` in a job
of several ranks. `reads` brings the bytes. `interop` has the formats of other tools.
"""
