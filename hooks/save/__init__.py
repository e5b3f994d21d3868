"""One save of one rank: planned, uploaded, committed.

`request` has what a save is asked for and what became of it; `checkpointer` does it, from standing state to committed
checkpoint. `policy` decides what a single process saves in the time that is left, `share` does what all ranks have
agreed on. `plan` says what is written where, `upload` puts it, `commit` makes a checkpoint of it.
"""
