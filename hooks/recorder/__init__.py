"""The recorder of `spotguard prove`: it records one run of a training script and ends the run as the plan requires.

`register` loads it only if SPOTGUARD_PROVE names a plan. Read the modules in this order:

- `plan`: the harness's instructions for this process
- `startup`: files and threads, from the interpreter's first line on
- `recorder`: each boundary as one line of JSON, and the `Guard` that records
- `state` and `variables`: the values that are checksummed at a boundary
- `trace`: the events between two boundaries
- `checksums`

`failure_plan` and `simulated_failure` are the same for `spotguard simulate failure`: one failure, at a given step. No process
can continue itself after a stop: `spotguard simulate` does, once it sees a file in the plan's folder.

The recorder draws no random number and changes no tensor. Its run time does not matter.
"""
