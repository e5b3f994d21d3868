"""Layout of a run in a store: names in, keys out, and back.

No two saves ever share a key. The directory of a checkpoint is named by step, attempt, and the save's number within
the attempt. This module parses names from listings and manifests strictly: a name in any other form than ours is
not ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ....providers.errors import UsageError
from ....providers.run_id import RUN_ID, is_run_id

MARKER = "COMMIT.json"
INDEX = "INDEX.json"
SAVING = "SAVING.json"

#: Largest world, and bound of attempt, step and save. Ranks are five digits wide by convention, and an integer from
#: a store is bounded.
MAX_WORLD = 1_000_000
MAX_NUMBER = 10**15

_CHECKPOINT = re.compile(r"(\d{9,15})-(\d{4,15})-(\d{4,15})", re.ASCII)
_MANIFEST = re.compile(r"(\d{5,7})-of-(\d{5,7})\.json", re.ASCII)
_OBJECT = re.compile(r"(\d{5,7})-of-(\d{5,7})/(\d{4,7})\.safetensors", re.ASCII)
_ATTEMPT = re.compile(r"(\d{4,15})\.json", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """Name of one save of a run.

    Larger is newer. A later attempt beats a higher step, since it began from the checkpoint that it chose.
    """

    attempt: int
    step: int
    save: int

    def __str__(self) -> str:
        return f"{self.step:09d}-{self.attempt:04d}-{self.save:04d}"

    @classmethod
    def parse(cls, text: str) -> CheckpointName | None:
        """Return the name of a checkpoint's directory, or None if the text is not one of ours."""
        if (match := _CHECKPOINT.fullmatch(text)) is None:
            return None
        step, attempt, save = map(int, match.groups())
        name = cls(attempt, step, save)
        return name if str(name) == text else None


def check_run_id(run_id: object) -> str:
    """Return the run id if it can be the name of a directory in every store.

    Raises:
        UsageError: it cannot.
    """
    if not (isinstance(run_id, str) and is_run_id(run_id)):
        raise UsageError(f"run id {str(run_id)[:80]!r} cannot be the name of a directory: use {RUN_ID}")
    return run_id


def attempts_prefix(run_id: str) -> str:
    return f"{run_id}/attempts/"


def attempt_key(run_id: str, attempt: int) -> str:
    return f"{run_id}/attempts/{attempt:04d}.json"


def parse_attempt(run_id: str, key: str) -> int | None:
    """Return the number of the attempt whose record has this key, or None."""
    match = _ATTEMPT.fullmatch(key.removeprefix(attempts_prefix(run_id)))
    if match is None or attempt_key(run_id, int(match[1])) != key:
        return None
    return int(match[1])


def outcome_key(run_id: str, attempt: int, number: int, rank: int = 0) -> str:
    """Return the key for the outcome of one of the attempt's notices.

    The outcome is a record for people, and no save or restore reads it. Marks do, and so does the count of failures. Each rank counts its own records, because a
    rank that writes one for a first rank that is gone does not know that rank's count.
    """
    other = f"-{rank:05d}" if rank else ""
    return f"{run_id}/outcomes/{attempt:04d}-{number:02d}{other}.json"


def outcomes_prefix(run_id: str, attempt: int) -> str:
    return f"{run_id}/outcomes/{attempt:04d}-"


def stacks_key(run_id: str, attempt: int, number: int, rank: int) -> str:
    """Return the key for the stacks of a rank in one of the attempt's stalls, as the rank counts them. Only people read it."""
    return f"{run_id}/stalls/{attempt:04d}-{number:02d}-{rank:05d}.json"


def held_stacks_key(run_id: str, attempt: int, rank: int, at: float) -> str:
    """Return the key for the stacks of a rank in which no Python runs, read from outside at this time. Only people read it."""
    return f"{run_id}/stalls/{attempt:04d}-held-{rank:05d}-{at:.0f}.json"


def failure_key(run_id: str, attempt: int, rank: int) -> str:
    """Return the key for the record of the error that ended a rank of the attempt. People read it, and the count of failures."""
    return f"{run_id}/failures/{attempt:04d}-{rank:05d}.json"


def failures_prefix(run_id: str, attempt: int) -> str:
    return f"{run_id}/failures/{attempt:04d}-"


def side_key(run_id: str, attempt: int, step: int) -> str:
    """Return the key of the record that says which side of the job saves a step without the ranks that it cannot reach."""
    return f"{run_id}/sides/{attempt:04d}-{step:09d}.json"


def end_key(run_id: str, attempt: int) -> str:
    """Return the key for the record of an end of the attempt that neither a notice nor an error brought. Only people read it."""
    return f"{run_id}/ends/{attempt:04d}.json"


def dismissed_key(run_id: str, id: str) -> str:
    """Return the key of the record that an alarm of this id was a false one."""
    return f"{run_id}/dismissed/{id}.json"


def anew_key(run_id: str) -> str:
    """Return the key of the record that says up to which damaged checkpoint `--begin-anew` was spent."""
    return f"{run_id}/begun-anew.json"


def probe_key(run_id: str, token: str) -> str:
    """Return the key of an object that a start writes and deletes to test its rights. It means nothing afterwards."""
    return f"{run_id}/probes/{token}"


def checkpoints_prefix(run_id: str) -> str:
    return f"{run_id}/checkpoints/"


def checkpoint_prefix(run_id: str, name: CheckpointName | str) -> str:
    """Return the directory of one checkpoint with its slash, to which the names inside are appended."""
    return f"{run_id}/checkpoints/{name}/"


def rank_stem(rank: int, world: int) -> str:
    return f"{rank:05d}-of-{world:05d}"


def manifest_name(rank: int, world: int) -> str:
    return f"{rank_stem(rank, world)}.json"


def object_name(rank: int, world: int, index: int) -> str:
    return f"{rank_stem(rank, world)}/{index:04d}.safetensors"


def parse_manifest_name(name: str) -> tuple[int, int] | None:
    """Return (rank, world) of a manifest, from its name inside its checkpoint's directory."""
    if (match := _MANIFEST.fullmatch(name)) is None:
        return None
    rank, world = int(match[1]), int(match[2])
    return (rank, world) if rank < world <= MAX_WORLD and manifest_name(rank, world) == name else None


def parse_object_name(name: str) -> tuple[int, int, int] | None:
    """Return (rank, world, index) of an object, from its name inside its checkpoint's directory."""
    if (match := _OBJECT.fullmatch(name)) is None:
        return None
    rank, world, index = map(int, match.groups())
    return (
        (rank, world, index)
        if rank < world <= MAX_WORLD and object_name(rank, world, index) == name
        else None
    )
