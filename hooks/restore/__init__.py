"""From a store back into memory: the newest whole checkpoint, or the next older one, never a mix.

`startup` claims an attempt and chooses the way; `restore` is that of one process, `collective` that of several ranks.
`reader` puts chunks into tensors, by `ranges` (which bytes), `fetch` (the requests) and `sink` (who takes them).
"""
