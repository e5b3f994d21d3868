"""`spotguard doctor --trial`: a few steps of the user's own command, measured, and ended by an emergency save.

Read in this order:

- `memory`: the peak memory of the command's processes;
- `measured`: the record of one rank;
- `harness`: the run itself, in the harness of `spotguard prove`;
- `findings`: the findings about it.

Inside the training process `spotguard.hooks.recorder.measurement` measures.
"""
