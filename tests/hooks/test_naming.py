"""The names that we choose: stable for one job, different for another."""

from __future__ import annotations

import pytest

from spotguard.hooks.arguments.names import default_run_id, slurm_job

COMMAND = ["python", "train.py", "--lr", "0.1"]
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]"}


def test_other_arguments_are_another_run_and_another_interpreter_is_not() -> None:
    mine = default_run_id(COMMAND, "/work", {})
    assert mine.startswith("train-")
    assert default_run_id(["/opt/venv/bin/python", *COMMAND[1:]], "/work", {}) == mine
    assert default_run_id([*COMMAND[:-1], "0.2"], "/work", {}) != mine
    assert default_run_id(COMMAND, "/elsewhere", {}) != mine


def test_a_slurm_job_has_its_id_in_the_name() -> None:
    mine = default_run_id(COMMAND, "/work", JOB)
    assert mine.startswith("train-4711-")
    assert default_run_id(COMMAND, "/work", {**JOB, "SLURM_RESTART_COUNT": "2"}) == mine, "it is requeued"
    assert default_run_id(COMMAND, "/work", {"SLURM_JOB_ID": "4712"}) != mine
    assert default_run_id([*COMMAND[:-1], "0.2"], "/work", JOB) != mine, "two steps of one job"


@pytest.mark.parametrize(
    ("env", "job"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "4711"}, "4711"),
        ({"SLURM_JOB_ID": "4715", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}, "4715"),
        ({"SLURM_JOB_ID": "4711", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "4"}, "4711"),
        ({"SLURM_JOB_ID": "../4711"}, ""),
        ({"SLURM_JOB_ID": "4711_3"}, ""),
        ({"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}, ""),
    ],
)
def test_the_id_is_the_jobs_own(env: dict[str, str], job: str) -> None:
    """Another for each task of an array: the last one that starts has the array's."""
    assert slurm_job(env) == job


@pytest.mark.parametrize(
    "around",
    [
        {"SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "3"},
        {"SLURM_HET_SIZE": "2", "SLURM_HET_JOB_ID": "100", "SLURM_JOB_ID_HET_GROUP_0": "100"},
    ],
)
def test_two_jobs_that_one_job_has_submitted_are_two_runs(around: dict[str, str]) -> None:
    """What Slurm says of an array, or of a job of several parts, stands in the environment of what these submit too."""
    mine = default_run_id(COMMAND, "/work", {**around, "SLURM_JOB_ID": "200"})
    assert mine.startswith("train-200-")
    assert default_run_id(COMMAND, "/work", {**around, "SLURM_JOB_ID": "201"}).startswith("train-201-")


@pytest.mark.parametrize(
    "options",
    [
        ["--rdzv-endpoint=n1:29400", "--nnodes=2"],
        ["--rdzv_endpoint", "n7:29400", "--nnodes", "2"],
        ["--master-addr", "n7", "--node-rank", "1", "--nproc_per_node", "4"],
    ],
)
def test_in_a_slurm_job_the_machines_that_a_launcher_is_told_of_do_not_count(options: list[str]) -> None:
    """They differ between its nodes, and when it was requeued to others."""
    script = ["train.py", "--lr", "0.1"]
    mine = default_run_id(["torchrun", *script], "/work", JOB)
    assert default_run_id(["torchrun", *options, *script], "/work", JOB) == mine
    assert default_run_id(["torchrun", *options, *script], "/work", {}) != default_run_id(
        ["torchrun", *script], "/work", {}
    ), "elsewhere a run keeps the name that it has had"
