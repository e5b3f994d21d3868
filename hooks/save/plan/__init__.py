"""What a save writes, decided from values alone: `budget` by the time, `partitioner` by rank, `bin_packing` by object.

`write_plan` holds the result, and what of it is in the store. `throughput` is what earlier saves taught about the link.
"""
