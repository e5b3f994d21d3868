"""A checkpoint as values and bytes: keys, manifests, headers, chunks. Pure: no thread, no store, no torch.

Read `keys` (where everything lies) and `manifest` (what a rank says it wrote), then `codec` (their JSON) and
`coverage` (whether a set of them is a checkpoint). `values` is typed JSON for all that is no tensor.
"""
