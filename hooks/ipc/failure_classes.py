"""The classes of errors that end training, with the advice for each. `docs/how-to/failures.md` has the same table.

A part of the protocol: a hook tells its agent the class by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: The variable in which a command finds what `--recover` does for each class, and how often it has, as `rules_text` writes it.
RECOVERED = "SPOTGUARD_FAILURES"
#: The variable in which it finds the run, and behind a colon the first step behind the data that made values wrong
#: (`--recover nan=back`).
SKIP_STEPS = "SPOTGUARD_SKIP_STEPS"
#: The variable with a text of its own for each start of the command, for the records of the attempts in it.
LAUNCH = "SPOTGUARD_LAUNCH"
#: The beginning of a notice's id by which a run that stands still leaves its machine (`--recover stall=leave`).
LEAVES_FOR_STALL = "leave-stall"
#: Texts of errors that only broken hardware or its driver makes: CUDA's errors 214 and 220, the kernel driver's log, NVML's return
#: codes. Most errors of CUDA are none of them: a wrong build of the program makes `CUDA error: no kernel image is available` on
#: every machine, and a lost GPU may be an `unspecified launch failure`, as a bad index in a kernel is.
HARDWARE_TEXTS = (
    r"uncorrectable (?:ECC|NVLink) error|fallen off the bus|NVRM: Xid|Xid \(PCI|GPU is lost|"
    r"(?:could ?n[o']t|cannot|failed to) communicate with the NVIDIA driver|NVML: Driver Not Loaded"
)
#: Sources of evidence that `failures.diagnosis` asks.
OF_TEXT, OF_TYPE, OF_PLACE = "the error's text", "its type", "where it arose"
#: No count that is real is larger.
_LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One row of the table.

    Attributes:
        name: the class, as records and metrics have it.
        says: a few words for a person.
        advice: the first thing to try.
        evidence: the sources that may tell it; () of a class that is left if no other fits.
        scope: where its cause is.
        commits: whether the state that stands is worth a checkpoint.
        follows: whether such an error follows from another rank's: that one is the cause.
        stays: whether the next start would meet it again, if it arose at the same step twice. The others may pass by themselves.
    """

    name: str
    says: str
    advice: str
    evidence: tuple[str, ...] = ()
    scope: str = "one rank"
    commits: bool = True
    follows: bool = False
    stays: bool = False

    @property
    def confidence(self) -> str:
        """How sure records of it are, by `confidence_of`."""
        return "medium or high" if len(self.evidence) > 1 else confidence_of(len(self.evidence))


#: How sure a class is, by the number of sources that tell it.
CONFIDENCES = ("low", "medium", "high")


def confidence_of(sources: int) -> str:
    """Return how sure a class is that this many sources tell."""
    return CONFIDENCES[min(sources, 2)]


CLASSES = {
    each.name: each
    for each in (
        FailureClass(
            "cuda-memory",
            "the GPU is out of memory",
            "use a smaller batch with gradient accumulation, or activation checkpointing",
            evidence=(OF_TEXT, OF_TYPE),
        ),
        FailureClass(
            "host-memory",
            "the machine is out of memory",
            "use fewer loader workers, a smaller prefetch_factor, pin_memory=False, or more memory",
            evidence=(OF_TEXT, OF_TYPE, "the kernel's counter", "the kernel's log"),
            scope="one machine",
        ),
        FailureClass(
            "loader-worker",
            "a worker of the data loader died",
            "use fewer workers, pin_memory=False, or more shared memory (docker --shm-size); dmesg shows kills",
            evidence=(OF_TEXT, "the pipe to the worker"),
        ),
        FailureClass(
            "data",
            "the data could not be read",
            "look at the sample in the traceback; num_workers=0 shows the error where it arises",
            evidence=(OF_PLACE, OF_TEXT),
            stays=True,
        ),
        FailureClass(
            "nan",
            "a value is not finite",
            "lower the learning rate, clip gradients, or look at the batch",
            evidence=(OF_TEXT, OF_TYPE),
            scope="all ranks",
            commits=False,
            stays=True,
        ),
        FailureClass(
            "gpu",
            "the GPU or its driver reports an error",
            "find the kernel with CUDA_LAUNCH_BLOCKING=1; after a memory error, use another machine",
            evidence=(OF_TEXT, "the kernel's log"),
            scope="one machine",
            commits=False,
        ),
        FailureClass(
            "disk-full",
            "a disk is full",
            "free space, or write checkpoints and caches elsewhere",
            evidence=(OF_TEXT, "its errno"),
            scope="one machine",
        ),
        FailureClass(
            "peer-lost",
            "another rank is gone, or does not answer",
            "find the rank that failed first; if it was only slow, raise init_process_group(timeout=…)",
            evidence=(OF_TEXT, OF_TYPE),
            scope="another rank",
            follows=True,
        ),
        FailureClass(
            "network",
            "a connection failed",
            "see whether the service answers from this machine",
            evidence=(OF_TYPE,),
            scope="one machine",
        ),
        FailureClass(
            "output",
            "the reader of the output has gone",
            "write to a file, or have the reader outlive Ctrl-C, as tee -i does",
            evidence=(OF_TYPE,),
            scope="one machine",
        ),
        FailureClass(
            "program",
            "an error of the program",
            "the traceback names the line",
            scope="all ranks",
            stays=True,
        ),
    )
}

#: The classes of failures that are no errors: a death by a signal, and training that stands still.
DEATHS = {
    each.name: each
    for each in (
        FailureClass(
            "killed",
            "a process was killed",
            "see dmesg, and the log of the scheduler",
            evidence=("the command's signal", "a process that died without a word"),
            commits=False,
        ),
        FailureClass(
            "stall",
            "training stood still",
            "see its stacks: spotguard report --html; keep init_process_group(timeout=…) above the limit",
            evidence=("no progress of any rank",),
            scope="all ranks",
        ),
    )
}

#: All classes of failures.
FAILURES = (*CLASSES, *DEATHS)


def is_broken_hardware(kind: str, message: str) -> bool:
    """Return whether an error itself is evidence that its machine is broken, and not only that a program met an error there.

    Args:
        kind: the error's class.
        message: the error's message.
    """
    return kind == "gpu" and re.search(HARDWARE_TEXTS, message, re.IGNORECASE) is not None


def rules_text(rules: Mapping[str, tuple[str, int]]) -> str:
    """Return the action of each class that has a rule, and its count, as one word: "gpu=leave:1,stall=restart:0"."""
    return ",".join(f"{kind}={action}:{count}" for kind, (action, count) in sorted(rules.items()))


def rules_of_text(text: str) -> dict[str, tuple[str, int]]:
    """Return what `rules_text` has written; what is none is left out."""
    found = re.findall(r"([a-z-]+)=([a-z]+):([0-9]{1,9})(?:,|$)", text)
    return {kind: (action, int(count)) for kind, action, count in found if kind in FAILURES}


def counts_of(told: object) -> dict[str, int]:
    """Return the counts of failures by class that another process has told, or a file has; what is none is left out."""
    if not isinstance(told, Mapping):
        return {}
    return {
        kind: min(told[kind], _LARGEST)
        for kind in FAILURES
        if type(told.get(kind)) is int and told[kind] >= 0
    }


def larger_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the larger count of each class: both have counted the same failures, and either may have missed some."""
    return {kind: max(one.get(kind, 0), other.get(kind, 0)) for kind in {**one, **other}}
