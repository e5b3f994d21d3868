"""Objects on their way to the store: `writer` starts them, `workers` are its threads, `buffers` what they send from.

`transfer` is what the threads share, and `recheck` looks at the objects again where the store was away meanwhile.
"""
