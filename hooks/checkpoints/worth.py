"""In which order whole checkpoints are tried, where those of the lower level are among them. Without torch: who only
asks what a restore takes may have none."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from .catalog import Whole

log = logging.getLogger("spotguard")

#: Steps that the moments are worth: so many Adam's second one takes to be itself again, with its usual beta of 0.999.
MOMENTS_WORTH = 1000


def worth_it(newest_first: Iterator[Whole]) -> Iterator[Whole]:
    """Full checkpoints, and of the lower level those that are newer by more than their missing moments cost."""
    lower: list[Whole] = []
    for whole in newest_first:
        if whole.level != "full":
            lower.append(whole)
            continue
        for light in tuple(lower):
            if light.name.step - whole.name.step >= MOMENTS_WORTH:
                lower.remove(light)
                yield light
            else:
                log.warning(
                    "step %d was saved without the optimizer's moments, and the full checkpoint of step %d is taken: "
                    "guard.restore(step=%d) takes the other one",
                    light.name.step,
                    whole.name.step,
                    light.name.step,
                )
        yield whole  # who comes back for more found it damaged: the others are held against the next full one
    yield from lower
