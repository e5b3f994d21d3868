"""Checkpoint format as values and bytes: keys, manifests, headers, chunks. Pure: no thread, no store, no torch.

Read `keys` (the layout in a store) and `manifest` (the record of what a rank wrote) first. Then read `columns` (the
tensors of a manifest), `codec` (their JSON) and `coverage` (whether a set of manifests is a checkpoint). `values` is typed JSON for everything that is not
a tensor.
"""
