"""What the doctor says of the job that is registered: its size, when it saves, and its newest checkpoint."""

from __future__ import annotations

from typing import Any

from spotguard.doctor.checks import job
from spotguard.doctor.finding import Finding
from tests.cli.status.test_view import a_session

GIB = 2**30


def a_rank(rank: int = 0, **more: Any) -> dict[str, Any]:
    said = {"store": "s3://b/p", "interval": 60.0, "for_seconds": 600.0, "save_seconds": None, "rate": None}
    return a_session(rank=rank, pid=100 + rank, **{**said, **more})


TRIED = "s3://b/p"


def looked(*sessions: dict[str, Any]) -> dict[str, Finding]:
    return {each.check: each for each in job.look(sessions, TRIED)}


def test_one_that_saves_at_the_notice_is_well() -> None:
    found = looked(a_rank(bytes=GIB))
    assert [found[check].state for check in ("job", "checkpoint")] == ["ok", "ok"]
    assert found["job"].found == "run gpt-small-7: 1.0 GiB, step 5210, saved at any moment of a step"
    assert found["checkpoint"].found == "run gpt-small-7: of step 5000, 12 s old; one is made every 60 s"


def test_the_verdict_about_the_scripts_code_is_a_finding_once() -> None:
    ranks = [a_rank(rank, world=2, proof="never proven to resume exactly") for rank in range(2)]
    unproven = [each for each in job.look(ranks, TRIED) if "proof" in each.facts]
    assert [(each.state, each.found) for each in unproven] == [
        ("warning", "run gpt-small-7: never proven to resume exactly")
    ]
    assert unproven[0].advice.startswith("type spotguard prove -- COMMAND")
    assert [
        each.state for each in job.look([a_rank(proof="EXACT over 50 steps")], TRIED) if "proof" in each.facts
    ] == ["ok"]


def test_an_attached_trainer_is_a_finding_once() -> None:
    ranks = [a_rank(rank, world=2, attached="Trainer of transformers 5.24.0") for rank in range(2)]
    attached = [each.found for each in job.look(ranks, TRIED) if "attached" in each.facts]
    assert attached == ["run gpt-small-7: attached to Trainer of transformers 5.24.0"]


def test_ranks_of_one_machine_share_its_link() -> None:
    found = looked(*(a_rank(rank, bytes=GIB, world=4) for rank in range(4)))
    assert found["job"].facts["bytes"] == 4 * GIB
    assert "4.0 GiB of 4 ranks here" in found["job"].found


def test_state_that_several_ranks_hold_is_counted_once_after_a_save() -> None:
    """DDP: each of two holds a GiB and writes half of it."""
    ranks = [a_rank(rank, bytes=GIB, world=2, save_seconds=5.0, rate=GIB / 10) for rank in range(2)]
    assert job.nbytes(ranks) == GIB
    # What its own last saves took for the commits beside is no reason for more than it holds.
    assert job.nbytes([a_rank(bytes=GIB, save_seconds=50.0, rate=GIB / 10)]) == GIB


def test_one_that_saves_at_boundaries_only_is_a_warning_with_the_reason() -> None:
    found = looked(a_rank(mode="boundary", detail="adamw cannot be hooked"))["job"]
    assert found.state == "warning"
    assert found.found.endswith("saved at the next guard.step() only: adamw cannot be hooked")
    assert "keep steps short" in found.advice


MISUSE = "guard.step() was not called since guard.restore(); call guard.step() after each optimizer.step()"


def test_a_script_that_uses_spotguard_wrongly_fails_with_the_way_out() -> None:
    """Of two ranks that say the same, once."""
    found = [*job.look([a_rank(rank, world=2, misuse=MISUSE) for rank in range(2)], TRIED)]
    failing = [each for each in found if each.state == "fails"]
    assert [(each.check, each.found, each.advice) for each in failing] == [
        (
            "job",
            "run gpt-small-7: guard.step() was not called since guard.restore()",
            "call guard.step() after each optimizer.step()",
        )
    ]
    assert failing[0].facts == {"run_id": "gpt-small-7", "misuse": MISUSE}


def test_one_that_saves_by_a_function_of_its_own_has_no_size() -> None:
    found = looked(a_rank(store="", mode="callback", bytes=0))
    assert list(found) == ["job"]
    assert (found["job"].state, found["job"].facts["bytes"]) == ("warning", None)
    assert "spotguard drill" in found["job"].advice


def test_one_beside_another_that_is_well_is_told_of_too() -> None:
    found = [*job.look([a_rank(1, store="", mode="callback", bytes=0), a_rank(bytes=GIB)], TRIED)]
    assert [(each.check, each.state) for each in found[:2]] == [("job", "warning"), ("job", "ok")]
    assert "by a function of its own" in found[0].found


def test_a_run_that_saves_to_another_store_is_a_warning() -> None:
    """What was found of the one that was tried says nothing of it."""
    here, there = a_rank(store="s3://b/p/?region=eu-west-2"), a_rank(1, run_id="other", store="s3://b/q")
    found = [each for each in job.look([here, there], TRIED) if "not tried" in each.found]
    assert [each.found for each in found] == ["run other saves to s3://b/q, and that store was not tried"]
    assert (found[0].state, found[0].advice) == ("warning", "ask again for that one: --store 's3://b/q'")
    last = [each for each in job.look([here, there], TRIED) if each.check == "job"][-1]
    assert last.facts["runs"] == ["gpt-small-7", "other"], "a program finds all of them in the last one"


def test_a_late_checkpoint_is_a_warning() -> None:
    found = looked(a_rank(checkpoint_age=121.0))["checkpoint"]
    assert found.state == "warning"
    assert "the job's log" in found.advice
    assert looked(a_rank(checkpoint_age=119.0))["checkpoint"].state == "ok"


def test_an_old_checkpoint_of_who_has_just_begun_again_is_not_late() -> None:
    """It was restored from what another machine had saved."""
    assert looked(a_rank(checkpoint_age=3600.0, for_seconds=20.0))["checkpoint"].state == "ok"
    assert looked(a_rank(checkpoint_age=3600.0, for_seconds=130.0))["checkpoint"].state == "warning"


def test_none_yet_is_a_warning_when_it_should_be_there() -> None:
    nothing: dict[str, Any] = {"checkpoint_step": -1, "checkpoint_age": None}
    late = looked(a_rank(**nothing, for_seconds=130.0))["checkpoint"]
    assert (late.state, late.found) == ("warning", "run gpt-small-7: none yet; one is made every 60 s")
    nothing["damaged_checkpoint"] = "000005000-0001-0003"
    found = looked(a_rank(**nothing, for_seconds=130.0))["checkpoint"].found
    assert found == "run gpt-small-7: none: 000005000-0001-0003 is damaged; one is made every 60 s"
    assert looked(a_rank(**nothing, for_seconds=30.0))["checkpoint"].state == "ok"


def test_without_background_checkpoints_a_warning_says_what_is_lost() -> None:
    found = looked(a_rank(interval=None))["checkpoint"]
    assert found.state == "warning"
    assert "--every auto" in found.advice


def test_no_job_is_no_failure() -> None:
    found = looked()["job"]
    assert (found.state, found.facts["bytes"]) == ("ok", None)
    assert "spotguard run" in found.advice


def test_a_run_that_is_not_here_is_told_which_are() -> None:
    (found,) = job.look([], TRIED, "other", [a_rank(), a_rank(1), a_rank(run_id="vit")])
    assert found.state == "warning"
    assert found.found == "none of run other is registered here; registered are gpt-small-7, vit"
    assert "--run-id gpt-small-7" in found.advice
    assert found.facts["others"] == ["gpt-small-7", "vit"]


def test_another_run_beside_the_one_that_is_meant_shares_its_link() -> None:
    found = list(job.look([a_rank()], TRIED, "gpt-small-7", [a_rank(1, run_id="vit")]))
    assert [(each.check, each.state) for each in found] == [
        ("job", "warning"),
        ("job", "ok"),
        ("checkpoint", "ok"),
    ]
    assert found[0].found.startswith("vit: registered here too")
    assert "--run-id" in found[0].advice


def test_runs_of_one_machine_are_counted_by_run() -> None:
    """Two of one rank each are not two ranks of something."""
    vit = [a_rank(rank, run_id="vit", bytes=GIB, step=7, world=2) for rank in (1, 2)]
    found = [each for each in job.look([a_rank(bytes=GIB), *vit], TRIED) if each.check == "job"]
    assert [each.found.split(", saved")[0] for each in found] == [
        "run gpt-small-7: 1.0 GiB, step 5210",
        "run vit: 2.0 GiB of 2 ranks here, step 7",
        "2 runs (gpt-small-7, vit): 3.0 GiB together, over one link",
    ]
    assert [(each.facts["bytes"], each.facts["ranks"]) for each in found] == [
        (GIB, 1),
        (2 * GIB, 2),
        (3 * GIB, 3),
    ]
    assert (found[2].facts["runs"], found[2].facts["step"]) == (["gpt-small-7", "vit"], None)


def test_the_slowest_ranks_own_saves_count() -> None:
    ranks = [a_rank(0, save_seconds=3.0), a_rank(1, save_seconds=7.0), a_rank(2)]
    assert job.own_seconds(ranks) == 7.0
    assert job.own_seconds([a_rank()]) is None
