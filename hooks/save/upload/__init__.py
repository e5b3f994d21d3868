"""The upload of objects: `uploader` starts their puts, `workers` are its threads, with the memory that they send from.

`transfer` is the state that the threads share, and `transfer_handle` waits for it. `retry` decides when a failed request is tried
again.
"""
