"""Loaders: where a pass over the data stands, and how a restarted process goes on there with the batches of an uninterrupted run.

Read `resumable` first: `ResumableLoader` wraps any loader. `drivers` knows how each kind of loader begins a pass and goes on in one.
`generators` finds the random number generators in a loader, its dataset and its transforms; `epochs` has what else orders samples. `batch_mark` compares batches with
those of before a restart. `worker_draws` notices random numbers in workers. `loop_use` notices loops that no restart repeats.
`part` registers a wrapped loader, and refuses others.
"""

from __future__ import annotations

from .resumable import ResumableLoader

__all__ = ["ResumableLoader"]
