"""Marks: what spotguard did to a run, as events in its experiment tracker.

Three events are marked, each with its step:

- A commit that no preemption asked for: background checkpoints, `guard.save()`, drills.
- A preemption, with its notice and its save.
- A resume, with the steps that were lost.

No tracker can cost a checkpoint. The guard only puts an event into a queue, and a daemon thread calls the tracker. While a notice
waits for its commit, that thread calls nothing. An ending process waits 2 s for it at most.

A machine may be gone before a preemption is marked. So each resume reads the outcome records of the store, and marks the
preemptions that the tracker lacks. The store does not know which steps an earlier process trained after its last commit:
for that, a note beside the tracker's data has the newest step.

Read `mark`, `history` and `tracker` first. `tensorboard`, `wandb` and `mlflow` are public, as `spotguard.integrations.<name>`;
`loggers` finds them for the adapters.
"""
