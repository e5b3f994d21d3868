"""The stores of a job, and a rank's connections to them.

`connection` runs the operations of `protocol` on a store, on threads that the process can do without. `store_client` holds one store
with a rank's connections to it. `second` makes the second store, which the ranks use when the job's own store is gone.
"""
