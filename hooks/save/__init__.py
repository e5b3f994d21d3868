"""One save of one rank: planned, uploaded, committed.

`request` holds a save's request and its result. `checkpointer` runs the save, from the state at rest to the committed
checkpoint. `local_copy` holds the state of a background save, so that training goes on. `emergency` decides what is saved in the
remaining time. `plan` decides which bytes go into which object. `upload` has the queue of a save: it puts the objects, and the
manifest and marker that `committer` and `commit` add behind them make them a checkpoint.
"""
