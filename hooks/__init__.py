"""Inside the training process: stop at a boundary, agree on a step, save it, commit it, restore it.

Read `register`, then `guard`, which a training script holds, and then one way:

- **a save**: `control` (training thread and saver thread), `consensus` (one step for all ranks), `state` (what is
  saved), `save` (its bytes), `commit` (plan, upload, commit), `checkpoint` (what then lies in the store);
- **a restore**: `restore`, and `interop` in it for other readers.

`ipc` is the socket to the machine's agent. `recorder` serves `spotguard prove`.
"""
