"""The recorder of `spotguard prove`: writes down what one run of a training script does, and ends it where the plan says.

Loaded only where SPOTGUARD_PROVE names a plan; a job that nobody proves never imports it. Read in this order: `plan` (what
the harness asks of this process), `startup` (files and threads, from the interpreter's first line on), `guard` (a `Guard` that
also records), `recorder` (a boundary as one line of JSON), `state` and `variables` (what is checksummed at a boundary), `trace` (what
happens between two boundaries), `checksums`.

The recorder draws no random number and changes no tensor. It may cost as much time as it likes.
"""
