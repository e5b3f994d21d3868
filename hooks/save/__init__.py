"""One save of one rank: planned, uploaded, committed.

`request` holds a save's request and its result. `checkpointer` runs the save, from the state at rest to the committed
checkpoint. `local_copy` holds the state of a background save, so that training goes on. `emergency_save` decides what a
single process saves in the remaining time. `rank_share` runs the save that all ranks have agreed on. `plan` decides which bytes
go into which object, `upload` puts the objects, and `commit` makes them a checkpoint.
"""
