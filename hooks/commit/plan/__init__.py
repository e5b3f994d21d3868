"""The plan of a save, decided from values alone: `partitioner` by rank, `bin_packing` by object.

`write_plan` holds the result, and its objects that are in the store; `plan_cache` keeps it for the next save. `damage` knows
which checkpoints are damaged. `throughput` is what earlier saves have measured of the link.
"""
