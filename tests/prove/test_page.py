"""The page, and what a program reads."""

from __future__ import annotations

import json

import pytest

from spotguard.prove.causes import Cause
from spotguard.prove.compare import Difference
from spotguard.prove.page import as_json, lines
from spotguard.prove.proof import EXIT_CODES, Proof, ProofVerdict, Resumed

COMMAND = ["python", "train.py"]


def proof(verdict: ProofVerdict = ProofVerdict.EXACT, world: int = 1) -> Proof:
    made = Proof(verdict, 50, world, {"model": "Linear", "optimizer": "AdamW"})
    made.seen, made.lives, made.seconds, made.copy_bytes = {"loss": 50, "input": 50}, 7, 21.0, 2048
    made.not_tried = ["evaluation", "save"]
    made.resumed = [
        Resumed("preempted", "notice", 17, "boundary", 17, 33),
        Resumed("preempted", "preempt", 33, "forward", 33, 50),
        Resumed("killed", "kill", 30, "boundary", 26, 50),
    ]
    return made


def text(made: Proof, width: int | None = None) -> str:
    return "\n".join(words for words, _ in lines(made, COMMAND, width))


def differing() -> Proof:
    made = proof(ProofVerdict.INEXACT)
    first = Difference(18, "state", "b.weight", "float32[1, 32] 0000000a", "float32[1, 32] 0000000b")
    made.differences, made.where = [first, first], "preempted, run 2"
    made.resumed = [Resumed("preempted", "notice", 17, "boundary", 17, 50, [first])]
    made.causes = [
        Cause("optimizer", "optimizer `ob` trains `b.weight` and is not registered", "register it: …")
    ]
    return made


def test_an_exact_proof() -> None:
    made = proof()
    made.passed_over = ["epoch end"]
    assert (
        text(made)
        == """\
  command        python train.py
  compared       50 steps: model (Linear), optimizer (AdamW); generators, losses (50), inputs (50). 7 runs in 21 s, in copies of 2.0 KiB
  preempted      noticed through `spotguard run` after step 17, resumed at 17; preempted after step 33, in the next forward, resumed at 33: the same to step 50
  killed         killed after step 30, resumed at 26: the same to step 50
  not tried      evaluation, save: no step from 2 to 49 has them; a run of more --steps may have them
  not tried      epoch end: each save came at a boundary behind it
EXACT: a preempted run resumes with the bits of an uninterrupted one; not tried: evaluation, save, epoch end"""
    )


def test_an_inexact_proof_says_what_differs_first_why_and_what_to_do() -> None:
    found = text(differing())
    assert (
        "b.weight, at step 18: float32[1, 32] 0000000a undisturbed, float32[1, 32] 0000000b in preempted, run 2"
        in found
    )
    assert "1 more differ there" in found
    assert "\n  likely cause   optimizer `ob` trains `b.weight` and is not registered\n" in found
    assert found.endswith("INEXACT: a resumed run trains something else")
    assert "rank" not in found


def test_a_resume_that_failed() -> None:
    made = proof(ProofVerdict.INEXACT)
    made.resumed = [Resumed("killed", "kill", 30, "boundary", 26, 26, failed="exit code 1: KeyError: 'step'")]
    assert "killed after step 30, resumed at 26: did not come back" in text(made)


def test_the_rank_is_told_where_there_are_several() -> None:
    made = differing()
    made.world = 2
    assert "50 steps of 2 ranks" in text(made)
    assert "at step 18, rank 0" in text(made)


def test_two_runs_that_differ_by_themselves() -> None:
    made = proof(ProofVerdict.UNSURE)
    made.resumed, made.where = [], "plain-2"
    made.differences = [Difference(0, "state", "w", "a", "b", restored=True)]
    found = text(made)
    assert "w, right after the restore: a undisturbed, b in plain-2" in found
    assert "not tried" not in found, "nothing was tried around anything"
    assert found.endswith("UNSURE: a resume cannot be judged; two undisturbed runs differ already")


def test_files_that_runs_share() -> None:
    made = proof(ProofVerdict.UNSURE)
    made.leaks = ["/home/me/cache.bin"]
    found = text(made)
    assert "shared files   one run has written what another one has read: /home/me/cache.bin" in found
    assert found.endswith("UNSURE: a resume cannot be judged; the runs share files")


def test_checks_that_were_left_out_are_told() -> None:
    made = proof()
    made.watched, made.trouble, made.seen = False, "RuntimeError: odd", {}
    made.unsteady, made.not_saved, made.own_files = ["notes.at"], ["seen"], ["place.txt"]
    found = text(made)
    for words in (
        "this Python reads no sitecustomize",
        "not looked at: RuntimeError: odd",
        "no losses",
        "notes.at: different in each run by itself",
        "seen: starts over after a resume",
        "reads place.txt again",
    ):
        assert words in found


@pytest.mark.parametrize("width", [40, 80, 132])
def test_lines_fit_and_end_without_spaces(width: int) -> None:
    for words, _ in lines(differing(), COMMAND, width):
        assert words == words.rstrip()
        assert len(words) <= max(width, 66), words


@pytest.mark.parametrize("made", [proof(), differing()])
def test_a_program_reads_the_same(made: Proof) -> None:
    found = json.loads(json.dumps(as_json(made, COMMAND)))
    assert found["verdict"] == made.verdict
    assert found["exit_code"] == EXIT_CODES[made.verdict]
    assert [each["exact"] for each in found["resumed"]] == [not each.differences for each in made.resumed]
    assert [each["id"] for each in found["causes"]] == [each.id for each in made.causes]
    assert len(found["differences"]) == len(made.differences)
