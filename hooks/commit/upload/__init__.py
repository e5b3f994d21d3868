"""The queue of a save: `save_queue` is the saving thread's side, `transfer` puts the objects on the threads of `uploader`.

`object_in_flight` is what the transfer knows of its puts, and `workers` are the threads, with the memory that they send from. `retry`
decides when a failed request is tried again, and waits for a store that refuses; `machine_turn` has one process of a machine ask it.
"""
