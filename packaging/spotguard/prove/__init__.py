"""`spotguard prove`: run the user's own command undisturbed and preempted, and compare the results.

Read in this order:

- `series`: the runs of the command;
- `copies`: the directory that each runs in;
- `runner` and `processes`: one run, from its start to its end;
- `record`: the records of a run;
- `compare`: the first difference;
- `evidence` and `stale`: facts about two runs;
- `causes` and `wording`: why they probably differ;
- `proof`: the whole proof, to its verdict;
- `page`: the proof's output.

Inside the training process `spotguard.hooks.recorder` writes the records.
"""
