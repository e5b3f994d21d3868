"""The classes of errors that end training, with the advice for each. `docs/how-to/failures.md` has the same table.

A part of the protocol: a hook tells its agent the class by its name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One row of the table.

    Attributes:
        name: the class, as records and metrics have it.
        says: a few words for a person.
        advice: the first thing to try.
        commits: whether the state that stands is worth a checkpoint.
        follows: whether such an error follows from another rank's: that one is the cause.
        stays: whether the next start would meet it again, if it arose at the same step twice. The others may pass by themselves.
    """

    name: str
    says: str
    advice: str
    commits: bool = True
    follows: bool = False
    stays: bool = False


CLASSES = {
    each.name: each
    for each in (
        FailureClass(
            "cuda-memory",
            "the GPU is out of memory",
            "use a smaller batch with gradient accumulation, or activation checkpointing",
        ),
        FailureClass(
            "host-memory",
            "the machine is out of memory",
            "use fewer loader workers or a smaller prefetch_factor, or give the job more memory",
        ),
        FailureClass(
            "loader-worker",
            "a worker of the data loader died",
            "use fewer workers, or more shared memory (docker --shm-size); dmesg shows a kill for memory",
        ),
        FailureClass(
            "data",
            "the data could not be read",
            "look at the sample in the traceback; num_workers=0 shows the error where it arises",
            stays=True,
        ),
        FailureClass(
            "nan",
            "a value is not finite",
            "lower the learning rate, clip gradients, or look at the batch",
            commits=False,
            stays=True,
        ),
        FailureClass(
            "gpu",
            "the GPU or its driver reports an error",
            "find the kernel with CUDA_LAUNCH_BLOCKING=1; after a memory error, use another machine",
            commits=False,
        ),
        FailureClass(
            "disk-full",
            "a disk is full",
            "free space, or write checkpoints and caches elsewhere",
        ),
        FailureClass(
            "peer-lost",
            "another rank is gone, or does not answer",
            "look for the rank that failed first",
            follows=True,
        ),
        FailureClass(
            "network",
            "a connection failed",
            "see whether the service answers from this machine",
        ),
        FailureClass(
            "program",
            "an error of the program",
            "the traceback names the line",
            stays=True,
        ),
    )
}
