"""Restore: load the newest whole checkpoint from a store into memory, or the next older one, never a mix.

Begin to read at `startup`, which claims an attempt. It then calls `restore` in a job of one process, and `collective` in a job
of several ranks. `reader` reads chunks into tensors, by `ranges` (which bytes), and `fetch` (the requests).
"""
