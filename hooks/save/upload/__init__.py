"""The queue of a save: `save_queue` is the saving thread's side, `transfer` the state that its threads share.

`uploader` puts the objects (`object_in_flight`), `queue_entry` is what follows them, and `workers` are the threads, with the memory
that they send from. `retry` decides when a failed request is tried again, `refusals` waits for a store that refuses, and both leave
to the transfer what is in doubt.
"""
