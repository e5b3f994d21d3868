"""The upload of objects: `uploader` starts their puts, `workers` are its threads, `buffers` the memory that they send from.

`transfer` is the state that the threads share. `recheck` checks the objects again if the store was away meanwhile.
"""
