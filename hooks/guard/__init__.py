"""The object that a training script holds.

Read `guard` first: the script restores, marks its steps and saves through it. `parts` makes what a guard is made of, and connects
it. `load` puts a checkpoint into the registered state. `background` begins background checkpoints, and learns from each.
`call_place` finds calls beside training, and those in a loop over `steps`. `position` is what the guard tells its machine's agent
about training, and `view` what threads beside training see of it.
"""

from __future__ import annotations

from .guard import Guard

__all__ = ["Guard"]
