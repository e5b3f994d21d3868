"""Who has started this start of the job, and how often by now: in the launchers' own words, for the attempt's record.

For people who ask later why there are so many attempts. Nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .naming import slurm_job


def launchers(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The launchers around this process, outermost first, as plain JSON: `name`, `job`, and `restarts` of it so far."""
    found: list[dict[str, Any]] = []
    if job := slurm_job(env):
        # Not set before the first requeue (sbatch(1)); until then, one that a requeued job has submitted says that one's.
        found.append({"name": "slurm", "job": job, "restarts": _count(env.get("SLURM_RESTART_COUNT", "0"))})
        if nodes := env.get("SLURM_JOB_NODELIST"):
            found[0]["nodes"] = nodes
    if "TORCHELASTIC_RESTART_COUNT" in env:
        restarts = _count(env["TORCHELASTIC_RESTART_COUNT"])
        found.append({"name": "torchrun", "job": env.get("TORCHELASTIC_RUN_ID", ""), "restarts": restarts})
    return found


def in_words(info: Mapping[str, Any]) -> str:
    """What a record says of its launchers, for a person; "" where it says nothing."""
    said = info.get("launchers")
    each = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    return ", ".join(f"{one.get('name')} {one.get('job')}, restart {one.get('restarts')}" for one in each)


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
