"""`spotguard prove`: runs the user's own command undisturbed and preempted, and compares what the two have trained.

Read in this order: `series` (which runs of the command there are), `copies` (the folder that each runs in), `runner` and `processes`
(one run, from its start to its end), `record` (what it has written down), `compare` (the first thing that differs), `evidence` and
`stale` (facts about two runs), `causes` and `wording` (why they probably differ), `proof` (all of it, to a verdict), `page`.

Inside the training process `spotguard.hooks.recorder` writes the records.
"""
