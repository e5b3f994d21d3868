"""`spotguard report` and `spotguard ls --runs`: what happened to a run, from what its store has.

Read in this order:

- `facts`: the values that are read;
- `reading`: the store's listing and records, as facts; `events`: those of notices and errors; `stalls`: the ranks' stacks of a stall, as one fact;
- `attempts`, `notes` and `reckoning`: the report of one run, a pure function of its facts;
- `runs`: one line for each run of a store;
- `summary`: the report as text for a terminal, and as JSON;
- `page` and `picture`: the report as an HTML page with its timeline, on `svg`.
"""
