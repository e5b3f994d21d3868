"""One save of one rank: from the state to the queue that puts and commits it (`commit`).

`request` holds a save's request and its result. `checkpointer` runs the save, from the state at rest to the committed
checkpoint. `local_copy` holds the state of a background save, so that training goes on. `emergency` decides what is saved in the
remaining time. `shard_writer` reads the state into the queue's objects, and `committer` adds the manifest. `schedule` decides when
the next background checkpoint is due.
"""
