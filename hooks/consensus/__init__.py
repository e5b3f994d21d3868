"""One step for all ranks of a job, over the job's own store, with no collective.

Pure: `events` (the entries of the log), `job_state` (what they add up to), `vote` (offers and the decision), `protocol` (the
operations on the store, as values). `channel` does them, with `store` and its threads, connections and deadlines.
`barrier` and `agree_on` serve moments at which all ranks are at the same place: `register` and `restore`.
"""
