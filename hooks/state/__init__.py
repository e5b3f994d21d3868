"""The training state in memory: copy it at boundaries, read it in place, restore it. This room knows torch, and no store.

`state` holds everything that was registered. `parts` has one part for each registered value. `sharding` computes
which part of a tensor this rank holds. `changes` finds state that moved between boundaries. `misuse` finds training
loops that use the guard wrongly. `collected` is the input of a save, and `restore_plan` the input of a restore.
"""
