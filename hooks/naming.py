"""The names that `spotguard run` and a bare `register` choose by themselves, the same ones for the same job."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

#: The folder, in the working folder, where checkpoints go unless a store is given.
STORE_FOLDER = "spotguard-checkpoints"

#: A run id holds so many characters (`providers.run_id`).
_LONGEST = 64

#: What a launcher is told of machines (torchrun, DeepSpeed, accelerate): other words on each node of one job, and other ones
#: when the job has been requeued to other nodes.
_OF_MACHINES = frozenset(
    {
        *("--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank", "--local-addr"),
        *("--nnodes", "--nproc-per-node", "--main-process-ip", "--main-process-port"),
        *("--machine-rank", "--num-machines", "--num-processes"),
    }
)


def default_run_id(command: Sequence[str], folder: str, env: Mapping[str, str]) -> str:
    """The script's name and a hash of command and folder: stable across restarts, different for other arguments.

    In a Slurm job its id stands between them: the same on all its nodes and at each requeue, and another job is another run.

    Args:
        command: as the kernel got it (`sys.orig_argv`): ["python", "train.py", "--lr", "0.1"].
        env: where a scheduler says whose job this is.
    """
    words = [word for word in command[1:] if not word.startswith("-")]
    # A launcher's options have values of their own (`torchrun --nproc-per-node 2 train.py`): a script has its suffix.
    plain = words[0] if words else (command[0] if command else "run")
    script = next((word for word in words if word.endswith(".py")), plain)
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-")[:40] or "run"
    # The interpreter's path differs between machines and virtual environments; the job is the same.
    said = [os.path.basename(command[0]), *command[1:]] if command else []
    job = slurm_job(env)
    if job:
        said = [*_without_machines(said)]
    digest = hashlib.sha256("\0".join([folder, *said]).encode(errors="surrogateescape")).hexdigest()
    tail = f"-{job}-{digest[:8]}" if job else f"-{digest[:8]}"
    return stem[: _LONGEST - len(tail)] + tail


def slurm_job(env: Mapping[str, str]) -> str:
    """The job's own id, the same on all nodes and at each requeue, and another for each task of an array. "": none.

    Nothing else that stands there is asked: what Slurm says of an array, or of a job of several parts, it says to these alone,
    and `sbatch` hands it on to whatever jobs they submit. The tasks of all parts have the first one's id as it is.
    """
    said = env.get("SLURM_JOB_ID", "")
    return said if re.fullmatch(r"[0-9]{1,10}", said) else ""


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
