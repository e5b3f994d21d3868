"""The default names of a run and its store, and the launchers around this process: what a job is called by others."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# The launchers that started this attempt, and how often: in the launchers' own words, for the attempt's record.
#
# It explains later why a run has many attempts. No decision depends on it.


def launchers(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the launchers around this process, outermost first, as plain JSON: `name`, `job`, and its `restarts` so far."""
    around: list[dict[str, Any]] = []
    if job := slurm_job(env):
        # Slurm sets SLURM_RESTART_COUNT only at the first requeue (sbatch(1)). Until then a job that a requeued job submitted
        # inherits that job's count.
        around.append({"name": "slurm", "job": job, "restarts": _count(env.get("SLURM_RESTART_COUNT", "0"))})
        if nodes := env.get("SLURM_JOB_NODELIST"):
            around[0]["nodes"] = nodes
        if (since := env.get("SLURM_JOB_START_TIME", "")).isdigit():
            around[0]["since"] = int(since)
    if "TORCHELASTIC_RESTART_COUNT" in env:
        restarts = _count(env["TORCHELASTIC_RESTART_COUNT"])
        around.append({"name": "torchrun", "job": env.get("TORCHELASTIC_RUN_ID", ""), "restarts": restarts})
    return around


def in_words(info: Mapping[str, Any]) -> str:
    """Return the launchers of an attempt's record in words for a person, or "" if the record names none."""
    recorded = info.get("launchers")
    each = [one for one in recorded if isinstance(one, dict)] if isinstance(recorded, list) else []
    return ", ".join(f"{one.get('name')} {one.get('job')}, restart {one.get('restarts')}" for one in each)


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


# The default names that `spotguard run` and a bare `register` choose: the same names for the same job.

#: The directory for checkpoints, in the working directory, if no store is given.
STORE_FOLDER = "spotguard-checkpoints"

#: Most characters of a run id (`providers.run_id`).
_LONGEST = 64

#: Options by which a launcher (torchrun, DeepSpeed, accelerate) learns about machines. Their values differ between the nodes of
#: one job, and change when the job is requeued to other nodes.
_OF_MACHINES = frozenset(
    {
        *("--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank", "--local-addr"),
        *("--nnodes", "--nproc-per-node", "--main-process-ip", "--main-process-port"),
        *("--machine-rank", "--num-machines", "--num-processes"),
    }
)


def default_run_id(command: Sequence[str], folder: str, env: Mapping[str, str]) -> str:
    """Return the script's name and a hash of command and directory: stable across restarts, different for other arguments.

    In a Slurm job the job id stands between the two. It is the same on all nodes of the job and at each requeue. Another
    job is another run.

    Args:
        command: the command as the kernel got it (`sys.orig_argv`): ["python", "train.py", "--lr", "0.1"].
        folder: the working directory.
        env: the environment, in which a scheduler sets the job's id.
    """
    words = [word for word in command[1:] if not word.startswith("-")]
    # A launcher's options may take values (`torchrun --nproc-per-node 2 train.py`), so the suffix tells the script apart.
    plain = words[0] if words else (command[0] if command else "run")
    script = next((word for word in words if word.endswith(".py")), plain)
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-")[:40] or "run"
    # The interpreter's path differs between machines and virtual environments; the job is the same.
    hashed = [os.path.basename(command[0]), *command[1:]] if command else []
    job = slurm_job(env)
    if job:
        hashed = [*_without_machines(hashed)]
    digest = hashlib.sha256("\0".join([folder, *hashed]).encode(errors="surrogateescape")).hexdigest()
    tail = f"-{job}-{digest[:8]}" if job else f"-{digest[:8]}"
    return stem[: _LONGEST - len(tail)] + tail


def slurm_job(env: Mapping[str, str]) -> str:
    """Return the Slurm job's own id, or "" outside Slurm.

    It is the same on all nodes and at each requeue, and differs between the tasks of an array. No other variable is read:
    Slurm sets those for arrays and for jobs of several parts only, and `sbatch` passes them on to any job that such a job
    submits. The tasks of all parts have the first part's id anyway.
    """
    job = env.get("SLURM_JOB_ID", "")
    return job if re.fullmatch(r"[0-9]{1,10}", job) else ""


def _without_machines(words: Sequence[str]) -> Iterator[str]:
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name.replace("_", "-") in _OF_MACHINES:
            skip = not equals
        else:
            yield word


def default_store(folder: str) -> str:
    return f"{Path(folder, STORE_FOLDER).as_uri()}"
