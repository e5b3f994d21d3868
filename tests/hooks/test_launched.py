"""What an attempt's record says of who started it."""

from __future__ import annotations

import json

from spotguard.hooks.arguments.names import in_words, launchers
from spotguard.hooks.checkpoint.attempts import attempt_record, claim_attempt
from spotguard.hooks.checkpoint.format.keys import attempt_key
from tests.fakes.store import FakeStore

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]"}
TORCHRUN = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "4711"}


def test_nobody_has_started_it() -> None:
    assert launchers({}) == []
    assert in_words({}) == ""


def test_the_first_life_of_a_job_and_a_requeued_one() -> None:
    assert launchers(SLURM) == [{"name": "slurm", "job": "4711", "restarts": 0, "nodes": "n[1-2]"}]
    (again,) = launchers({**SLURM, "SLURM_RESTART_COUNT": "2"})
    assert again["restarts"] == 2


def test_newer_versions_of_slurm_say_when_the_job_began() -> None:
    (said,) = launchers({**SLURM, "SLURM_JOB_START_TIME": "1795000000"})
    assert said["since"] == 1795000000
    assert "since" not in launchers({**SLURM, "SLURM_JOB_START_TIME": "soon"})[0]


def test_a_launcher_below_the_scheduler() -> None:
    said = launchers({**SLURM, **TORCHRUN})
    assert [each["name"] for each in said] == ["slurm", "torchrun"]
    assert in_words({"launchers": said}) == "slurm 4711, restart 0, torchrun 4711, restart 1"


def test_a_malformed_restart_count_is_none() -> None:
    assert launchers({**SLURM, "SLURM_RESTART_COUNT": "many"})[0]["restarts"] is None


def test_a_record_keeps_it_and_one_without_it_is_read_too() -> None:
    """As written before spotguard knew of launchers, and by somebody else's hand."""
    store = FakeStore()
    first = claim_attempt(store, "run", {"pid": 1})
    second = claim_attempt(store, "run", {"pid": 1, "launchers": launchers(SLURM)})
    said = {n: attempt_record(store, "run", n) for n in (first, second, second + 1)}
    assert said[second + 1] is None, "there is no such attempt"
    assert [record and in_words(record.info) for record in said.values()] == [
        "",
        "slurm 4711, restart 0",
        None,
    ]
    assert json.loads(store.objects[attempt_key("run", second)])["attempt"]["info"]["launchers"]
    odd: object
    for odd in (3, [4], [{}], {"name": "slurm"}):
        in_words({"launchers": odd})
