"""Checkpoints in a store: listing, proof of completeness, attempts, retention. No module here imports torch.

`catalog` lists the checkpoints of a run and says which are whole; `listing` shows them to people. `ranking` orders them for a
restore, and `retention` decides which ones to delete. `attempts` are the starts of a job, `marker` makes the two requests that
commit, and `format` holds the bytes. `tier` is what a tensor is worth when time is short.
"""
