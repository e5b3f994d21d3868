"""What lies in a store: found, proved whole, claimed, pruned. No torch.

`catalog` lists the checkpoints of a run and says which are whole, `ranking` in which order a restore tries them, `retention`
which go. `attempts` are the starts of a job, `marker` the two requests that commit. `format` is the bytes.
"""
