"""The reads of a checkpoint's bytes.

`resharding` decides which chunks a rank reads, and fills its tensors; `ranges` makes requests of them, and `fetch` sends these.
`verify` reads every byte of a checkpoint and loads nothing.
"""
