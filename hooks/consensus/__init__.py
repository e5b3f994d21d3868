"""Consensus: all ranks of a job agree on one step, over the job's own store, with no collective.

Begin to read at `protocol` (the operations on the store, as values). It is pure, as are `events` (the entries of the log),
`job_state` (the state that they add up to) and `vote` (votes and the decision). `channel` makes a
rank's calls and votes, and `failover` leads it from the job's own store to the second one. `stores` has the threads, connections
and deadlines below them. `barrier` and `collective_results` serve `register` and `restore`, which all ranks call at once.
"""
