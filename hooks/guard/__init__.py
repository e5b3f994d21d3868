"""The object that a training script holds.

Read `guard` first: the script restores, marks its steps and saves through it. `parts` makes what a guard is made of, and connects
it. `restore` puts a checkpoint into the registered state. `by_hand` makes saves that the script asks for, and `background` those
between, from each of which it learns. `call_place` knows whether a call comes beside training, in the middle of a turn, or in a
loop over `steps`. `lifetime` ends a guard. `position` is what the guard tells its machine's agent
about training, and `view` what threads beside training see of it.
"""

from __future__ import annotations

from .guard import Guard

__all__ = ["Guard"]
