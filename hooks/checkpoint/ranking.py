"""Order in which a restore tries complete checkpoints, if some are not full.

This module needs no torch: a command that only asks which checkpoint a restore takes may run without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .catalog import WholeCheckpoint
from .format.manifest import lacks, private_name

log = logging.getLogger("spotguard")

#: Steps that the moments are worth: Adam's second moment takes 1000 to recover, with its usual beta of 0.999.
MOMENTS_WORTH = 1000
#: Steps that the extras of dead ranks are worth, unless `--extras-worth` says otherwise.
EXTRAS_WORTH = 100


def counts(step: int, complete: int) -> bool:
    """Whether a restore would take weights of this step without their moments.

    Args:
        step: the step of the weights.
        complete: the step of the newest checkpoint that has its moments; -1 for none.
    """
    return complete < 0 or step - complete >= MOMENTS_WORTH


def worth_it(
    newest_first: Iterator[WholeCheckpoint], extras_worth: int = EXTRAS_WORTH
) -> Iterator[WholeCheckpoint]:
    """Yield checkpoints in the order in which a restore tries them.

    These are the full checkpoints, and each of a lower level that is newer by more steps than its missing parts are
    worth.

    Args:
        newest_first: complete checkpoints.
        extras_worth: steps that the extras of dead ranks are worth. They are worth nothing if each missing rank had
            the very same extras as a present rank in the full checkpoint; the present rank's then stand in for
            them.
    """
    lower: list[WholeCheckpoint] = []
    for whole in newest_first:
        if whole.level != "full":
            lower.append(whole)
            continue
        priced = [(_ahead(light, whole, extras_worth), light) for light in lower]
        lower = []
        for ahead, light in sorted(priced, key=lambda pair: pair[0], reverse=True):
            if ahead > 0:
                yield replace(light, stand_ins=stand_ins(light, whole))
                continue
            lower.append(light)
            log.warning(
                "step %d was saved without %s, so a restore uses the full checkpoint of step %d: "
                "guard.restore(step=%d) restores the other one",
                light.name.step,
                lacks(light.level, light.missing),
                whole.name.step,
                light.name.step,
            )
        # a caller that asks for more found it damaged: the others are compared with the next full one
        yield whole
    yield from sorted(lower, key=lambda light: light.name.step - _worth(light, extras_worth), reverse=True)


def _ahead(light: WholeCheckpoint, full: WholeCheckpoint, extras_worth: int) -> int:
    """Return by how many steps `light` is newer than its missing parts are worth.

    At 0 or below, the full one is worth more.
    """
    rebuilt = light.level != "weights" and bool(stand_ins(light, full))
    return light.name.step - full.name.step - (0 if rebuilt else _worth(light, extras_worth))


def _worth(light: WholeCheckpoint, extras_worth: int) -> int:
    """Return the steps that its missing parts are worth."""
    return MOMENTS_WORTH - 1 if light.level == "weights" else extras_worth


def stand_ins(light: WholeCheckpoint, full: WholeCheckpoint) -> dict[int, int]:
    """Return for each missing rank a present one whose state was the very same in the full checkpoint.

    The result is empty if one of the missing ranks had a state of its own, such as its own seed.

    Args:
        light: a checkpoint that lacks the extras of some ranks.
        full: an older full one.
    """
    if not light.missing or len(full.manifests) != len(light.manifests):
        return {}
    present = [rank for rank in range(len(full.manifests)) if rank not in light.missing]
    states = {rank: _comparable(full, rank) for rank in [*light.missing, *present]}
    matches = {
        rank: next((other for other in present if states[other] == states[rank]), -1)
        for rank in light.missing
    }
    return {} if -1 in matches.values() else matches


def _comparable(whole: WholeCheckpoint, rank: int) -> Mapping[str, Any]:
    """Return a rank's state with its own tensors as their content instead of their names."""
    own = private_name(rank, "")

    def seen(value: Any) -> Any:
        if isinstance(value, list):
            return [seen(each) for each in value]
        if not isinstance(value, dict):
            return value
        name = value.get("name")
        if value.get("$") != "tensor" or not isinstance(name, str) or not name.startswith(own):
            return {key: seen(each) for key, each in value.items()}
        if (tensor := whole.tensors.get(name)) is None:
            return value
        return (tensor.dtype, tensor.shape, tensor.stored, [chunk.crc32 for _, chunk in tensor.chunks])

    state: Mapping[str, Any] = seen(dict(whole.manifests[rank].state))
    return state
