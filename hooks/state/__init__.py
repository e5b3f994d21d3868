"""What training has in memory: copied at boundaries, read in place, put back. Knows torch, and no store.

`state` is all that was registered, as one; `parts` is one registered value each; `sharding` says which part of a tensor
this rank holds. `changes` finds state that moved when it should stand still, `misuse` finds loops that are written wrongly.
`collected` is what a save is given, `restore_plan` what a restore fills.
"""
