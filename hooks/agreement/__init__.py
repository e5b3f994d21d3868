"""Agreement: how the ranks of a job come to save one and the same step, over nothing but the job's own store.

Calls stand in one log that all ranks read in order; each call that needs a save is decided once, for everybody. No
collective is made, and every wait ends by the caller's own deadline. What decides is pure (`calls`, `standing`,
`offers`, `decision`); what is said to the store, and in which order, is `member`; `channel` is the door.
"""
