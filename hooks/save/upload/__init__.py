"""The queue of a save: `save_queue` is the saving thread's side, `transfer` the state that its threads share.

`uploader` puts the objects, `queue_entry` is what follows them, and `workers` are the threads, with the memory that they send
from. `retry` decides when a failed request is tried again, and looks at what is in doubt.
"""
