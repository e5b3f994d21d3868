"""What `status` shows a person: each thing that matters, what to do about it, and nothing that a pipe cannot hold."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from spotguard.agent.core.session import Session
from spotguard.cli.status import view
from spotguard.hooks.ipc.protocol import Position, Register

NOW = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)

HOP_LIMIT = {
    "sight": "blind",
    "reason": "hop-limit",
    "detail": "PUT http://169.254.169.254/latest/api/token: no answer, while a GET without a token is answered at once (401)",
    "advice": "raise the hop limit: aws ec2 modify-instance-metadata-options --instance-id i-0123456789abcdef0 "
    "--http-put-response-hop-limit 2 (3 below an overlay network); in Kubernetes: hostNetwork: true",
}


def a_source(name: str = "aws spot/instance-action", **more: Any) -> dict[str, Any]:
    seeing = {"sight": "seeing", "reason": "", "detail": "", "advice": "", "for_seconds": 7.0}
    return {"name": name, **seeing, **more}


def a_session(**more: Any) -> dict[str, Any]:
    """A session as its agent shows it."""
    session = Session.of(1, 26954, 1000, Register(26954, "gpt-small-7", "train.py", nbytes=5585016), 0.0)
    session.position = Position(5210, checkpoint_step=5000, checkpoint_age=12.0)
    return {**session.status(0.0), "saving": None, "stall_limit": 60.0, **more}


def a_body(**more: Any) -> dict[str, Any]:
    return {
        "run_id": "gpt-small-7",
        "pid": 26810,
        "service": False,
        "for_seconds": 16.0,
        "phase": "watching",
        "command": {"pid": 26954, "returncode": None, "restarts": 0},
        "unattached": None,
        "sources": [a_source()],
        "notice": None,
        "upcoming": [],
        "last_outcome": None,
        "last_failure": None,
        "alerts": None,
        "silent_machines": [],
        "verification": None,
        "sessions": [a_session()],
        **more,
    }


def shown(body: dict[str, Any], width: int | None = 80) -> list[str]:
    return [words for words, _ in view.lines(body, NOW, width)]


def test_a_training_that_stands_still_is_shown_with_its_place() -> None:
    """After 10 s; not while it waits for a save."""
    still = {"phase": "data", "still": 34.2, "where": "train.py:13 in main", "stall_limit": 60.0}
    stands = a_body(sessions=[a_session(**still)])
    line = "none for 34 s, in data at train.py:13 in main; a stall from 60 s on"
    assert f"  progress      {line}" in shown(stands, None)
    assert f"; no progress of rank 0: {line}; " in view.pulse(stands)
    unlimited = a_body(sessions=[a_session(**still | {"stall_limit": None})])
    assert "in main; no stall is looked for; " in view.pulse(unlimited)
    for other in (still | {"still": 9.0}, still | {"phase": "save"}, {}):
        moves = a_body(sessions=[a_session(**other)])
        assert not any("progress" in line for line in shown(moves))
        assert "progress" not in view.pulse(moves)
        assert view.shape(moves) != view.shape(stands)


def test_the_phase_of_training_is_shown() -> None:
    one = a_session(phase="backward", still=0.2, where="train.py:13 in main")
    assert "  training      train.py (pid 26954), step 5210, in backward" in shown(a_body(sessions=[one]))
    ranks = [one | {"rank": rank, "world": 2} for rank in range(2)]
    assert [line.split()[-1] for line in shown(a_body(sessions=ranks), None)[3:6]] == [
        "now",
        "backward",
        "backward",
    ]


def test_a_training_that_sends_nothing_is_shown_with_its_last_place() -> None:
    """It may stand still or not; its last word is of no use."""
    silent = {"phase": "data", "still": 0.1, "where": "train.py:13 in main", "unheard": 240.0}
    lines = shown(a_body(sessions=[a_session(**silent)]), None)
    last = "last seen in data at train.py:13 in main"
    assert f"  progress      unknown: it has sent nothing for 4 min, {last}" in lines
    lines = shown(a_body(sessions=[a_session(**silent | {"unheard": 2.1})]))
    assert not any("progress" in line for line in lines)


def test_a_checkpoint_that_lacks_something_says_so() -> None:
    body = a_body(sessions=[a_session(checkpoint_level="partial-extras")])
    assert "  checkpoint    step 5000 (partial-extras), 12 s ago" in shown(body)


def test_values_that_the_newest_checkpoint_lacks_are_named() -> None:
    lacking = a_session(checkpoint_left_out="notes.path: pathlib.Path")
    assert "  left out      notes.path: pathlib.Path" in shown(a_body(sessions=[lacking]))
    each = lacking | {"checkpoint_left_out": "notes.path: pathlib.Path on rank 1", "world": 2}
    lines = shown(a_body(sessions=[each, each | {"rank": 1, "pid": 26955}]), None)
    assert [line for line in lines if "left out" in line] == [
        "  left out      notes.path: pathlib.Path on rank 1"
    ]


def test_the_verdict_about_the_scripts_code_is_shown() -> None:
    for proof, style in (
        ("EXACT over 50 steps", ""),
        ("never proven to resume exactly", "yellow"),
        ("INEXACT over 50 steps", "yellow"),
    ):
        one = a_session(proof=proof)
        line = f"  proof         {proof}", style
        assert [*view.lines(a_body(sessions=[one]), NOW, 80)].count(line) == 1
        ranks = [one | {"rank": rank, "world": 2} for rank in range(2)]
        assert [*view.lines(a_body(sessions=ranks), NOW, 80)].count(line) == 1


def test_a_background_checkpoint_that_failed_is_shown_with_why() -> None:
    """Of a full disk "none yet" said nothing."""
    why = "put file:///mnt/x: No space left on device"
    assert not any("FAILED" in line for line in shown(a_body()))
    failed = a_session(failing=why)
    assert any(line.split()[0] == "FAILED" and why in line for line in shown(a_body(sessions=[failed]), None))
    several = [failed | {"world": 2}, a_session(rank=1, world=2, pid=7)]
    assert f"of rank 0: {why}" in "\n".join(shown(a_body(sessions=several), None))


def test_damaged_checkpoint_is_none_and_is_named() -> None:
    damaged = {"checkpoint_age": None, "damaged_checkpoint": "000005000-0001-0003"}
    body = a_body(sessions=[a_session(checkpoint_step=-1, **damaged)])
    assert "  checkpoint    none: 000005000-0001-0003 is damaged" in shown(body)


def test_a_run_on_which_all_is_well() -> None:
    assert shown(a_body()) == [
        "run gpt-small-7 (pid 26810), command pid 26954, for 16 s, watching",
        "  notices       aws spot/instance-action  seeing for 7 s",
        "  training      train.py (pid 26954), step 5210",
        "  checkpoint    step 5000, 12 s ago",
        "  saves         5.3 MiB at any moment of a step",
    ]


def test_the_cost_of_a_save_is_shown_once_one_has_measured_it() -> None:
    session = a_session(save_seconds=12.04, rate=7.0 * 2**30)
    lines = shown(a_body(sessions=[session]), None)
    assert lines[-1].endswith(
        "at any moment of a step; about 12.0 s at the speed of the last ones (7.0 GiB/s)"
    )
    assert shown(a_body(), None)[-1].endswith("of a step")


MISUSE = "guard.step() was not called since guard.restore(); call guard.step() after each optimizer.step()"


def test_a_loop_without_boundaries_says_never_and_then_what_is_wrong() -> None:
    session = a_session(unmarked_steps=4000, marked=False, misuse="")
    assert (
        shown(a_body(sessions=[session]))[3]
        == "  boundary      never: no guard.step() in 4,000 optimizer steps"
    )
    session = a_session(unmarked_steps=1, marked=True, misuse=MISUSE)
    assert shown(a_body(sessions=[session]), None)[3:5] == [
        "  WRONG         guard.step() was not called since guard.restore()",
        "  what to do    call guard.step() after each optimizer.step()",
    ]
    assert "; guard.step() was not called since guard.restore(); " in view.pulse(a_body(sessions=[session]))
    assert view.shape(a_body(sessions=[session])) != view.shape(a_body())


def test_losses_that_make_checkpoints_suspect_are_shown() -> None:
    """With the rank, where there are several."""
    bad = a_session(suspect="the loss is nan since step 7")
    assert "  SUSPECT       the loss is nan since step 7; its checkpoints do not count for --keep" in shown(
        a_body(sessions=[bad]), None
    )
    assert "; SUSPECT: the loss is nan since step 7; " in view.pulse(a_body(sessions=[bad]))
    assert view.shape(a_body(sessions=[bad])) != view.shape(a_body())
    ranks = [a_session(rank=0, world=2), a_session(rank=1, world=2, pid=9, suspect="the loss is inf")]
    assert [line for line in shown(a_body(sessions=ranks), None) if "SUSPECT" in line] == [
        "  SUSPECT       rank 1: the loss is inf; its checkpoints do not count for --keep"
    ]


def test_losses_far_above_the_usual_ones_are_shown() -> None:
    high = a_session(high_loss="the loss is 9 since step 7, and was 2")
    assert "  HIGH          the loss is 9 since step 7, and was 2" in shown(a_body(sessions=[high]), None)
    assert "; HIGH: the loss is 9 since step 7, and was 2; " in view.pulse(a_body(sessions=[high]))
    assert view.shape(a_body(sessions=[high])) != view.shape(a_body())


def test_a_mistake_of_several_ranks_is_shown_once() -> None:
    ranks = [a_session(rank=rank, pid=100 + rank, world=2, misuse=MISUSE, marked=True) for rank in range(2)]
    lines = shown(a_body(sessions=ranks), None)
    assert [line for line in lines if "WRONG" in line] == [
        "  WRONG         guard.step() was not called since guard.restore() (pid 100, pid 101)"
    ]


def test_a_blind_source_says_why_since_when_and_what_to_do() -> None:
    """Inside 80 columns, and without one word cut: what is to be typed can be copied from a pipe."""
    body = a_body(sources=[a_source(**HOP_LIMIT)])
    lines = shown(body)
    assert "  notices       aws spot/instance-action  BLIND for 7 s (hop-limit)" in lines
    assert "  hop-limit     PUT http://169.254.169.254/latest/api/token: no answer, while a" in lines
    assert "  what to do    raise the hop limit: aws ec2 modify-instance-metadata-options" in lines
    assert "                --instance-id i-0123456789abcdef0 --http-put-response-hop-limit" in lines
    assert max(map(len, lines)) <= 80
    assert f"  what to do    {HOP_LIMIT['advice']}" in shown(body, None)


def test_sources_that_are_blind_together_are_advised_once() -> None:
    """All of a cloud's keys lie behind the same door."""
    names = ["aws spot/instance-action", "aws events/maintenance/scheduled", "aws autoscaling"]
    timeout = {"sight": "blind", "reason": "timeout", "detail": "no answer in 2 s", "advice": ""}
    sources = [
        a_source(names[0], **HOP_LIMIT),
        a_source(names[1], **HOP_LIMIT),
        a_source(names[2], **timeout),
    ]
    lines = shown(a_body(sources=sources), None)
    assert [line for line in lines if "BLIND" in line] == [
        "  notices       aws spot/instance-action          BLIND for 7 s (hop-limit)",
        "                aws events/maintenance/scheduled  BLIND for 7 s (hop-limit)",
        "                aws autoscaling                   BLIND for 7 s (timeout)",
    ]
    assert sum("what to do" in line for line in lines) == 1
    assert "  timeout       no answer in 2 s" in lines


def test_a_wrong_server_is_called_so() -> None:
    wrong = {"sight": "wrong server", "reason": "wrong-server", "detail": "200 with a page", "advice": "look"}
    lines = shown(a_body(sources=[a_source(**wrong)]))
    assert "  notices       aws spot/instance-action  WRONG SERVER for 7 s (wrong-server)" in lines
    assert "  wrong-server  200 with a page" in lines


def test_a_detail_of_a_seeing_source_is_shown_beside_it() -> None:
    lines = shown(a_body(sources=[a_source(detail="own name not known, any event counts")]), None)
    assert lines[1].endswith("seeing for 7 s; own name not known, any event counts")


def test_standing_notices_are_shown_with_what_follows_and_when() -> None:
    """A reboot in a day, and a warning with no end named."""
    reboot = {
        "id": "a",
        "kind": "reboot",
        "severity": "later",
        "source": "aws events/maintenance/scheduled",
        "detail": "system-reboot",
        "for_seconds": 60.0,
        "seconds_left": 93600.0,
        "then": "checkpoint",
        "then_in": 93300.0,
    }
    warning = {
        "id": "b",
        "kind": "rebalance",
        "severity": "advisory",
        "source": "aws rebalance",
        "detail": "",
        "for_seconds": 240.0,
        "seconds_left": None,
        "then": "training continues",
        "then_in": None,
    }
    later, advisory = shown(a_body(upcoming=[reboot, warning]), None)[2:4]
    assert later.startswith("  later         reboot in 1 d 2 h, at 2026-11-22 ")
    assert later.endswith(
        ": training continues; a checkpoint in 1 d 1 h; from aws events/maintenance/scheduled (system-reboot)"
    )
    assert (
        advisory == "  advisory      rebalance, a warning for 4 min: training continues; from aws rebalance"
    )


#: Of a save whose bytes and rate are not known yet.
UNMEASURED = {"total": 0, "rate": None, "seconds_to_go": None, "seconds_left": 23.4}


def test_a_notice_stands_first() -> None:
    notice = {"id": "n", "kind": "preempt", "source": "gcp instance/preempted", "drill": False}
    saving = {"phase": "first-byte", "step": 5211, "bytes": 2**20, "why": "", **UNMEASURED}
    body = a_body(
        notice={**notice, "seconds_left": 23.44, "detail": "", "reserve": 3.0, "ending": ""},
        sessions=[a_session(saving=saving)],
    )
    lines = shown(body, None)
    said = "preempt from gcp instance/preempted: 23.4 s left, the last 3.0 s in reserve"
    assert lines[1] == f"  NOTICE        {said}"
    assert lines[-1] == "  saving        first-byte 1.0 MiB"
    going = {"total": 2**32, "rate": 2.0**26, "seconds_to_go": 48.0, "seconds_left": 20.44}
    body["sessions"] = [a_session(saving=saving | going | {"phase": "writing", "bytes": 2**30})]
    said = "writing 1.0 GiB of 4.0 GiB at 64.0 MiB/s, 48.0 s to go and 20.4 s for it"
    assert shown(body, None)[-1] == f"  saving        {said}"
    assert said in view.pulse(body)
    body["sessions"] = [a_session(saving=saving | going | {"phase": "committed", "why": "less"})]
    assert shown(body, None)[-1] == "  saving        committed 1.0 MiB: less"
    left = shown(body | {"sessions": [], "phase": "ending"})
    assert left[-1] == "  training      no training process is there any more"


def test_several_processes_are_a_table() -> None:
    """In the order of their ranks; why one of them waits for a boundary stands below."""
    why = "no torch optimizer is registered"
    sessions = [a_session(rank=1, world=2, pid=7, mode="boundary", detail=why), a_session(world=2, step=-1)]
    lines = shown(a_body(sessions=sessions), 132)
    assert lines[2:] == [
        "  ranks         train.py, step 5210, checkpoint step 5000, 12 s ago",
        "  rank  pid    step  checkpoint           state    saves     now",
        "  0/2   26954  -     step 5000, 12 s ago  5.3 MiB  window    training",
        "  1/2   7      5210  step 5000, 12 s ago  5.3 MiB  boundary  training",
        f"  saves         at the next guard.step(): {why} (pid 7)",
    ]


def test_eight_ranks_that_save_fit_a_terminal() -> None:
    """The whole job in one line, then a short line for each."""
    saving = {"phase": "writing", "step": 1, "bytes": 2**30, "why": "", **UNMEASURED}
    going = saving | {"total": 2**32, "rate": 2.0**26, "seconds_to_go": 48.0, "seconds_left": 20.4}
    sessions = [a_session(rank=n, world=16, pid=26954 + n, step=5210 + n % 2, saving=going) for n in range(8)]
    sessions[0]["saving"] = saving | {"phase": "committed"}
    body = a_body(sessions=sessions)
    lines = shown(body)
    assert max(map(len, lines)) <= 80
    said = "train.py, 8 of 16 here, step 5210 to 5211, checkpoint step 5000, 12 s ago, 1 committed, 7 writing"
    assert said in " ".join(" ".join(lines[2:4]).split())
    assert lines[5].endswith("window  committed 1.0 GiB")
    assert lines[6].endswith("window  25 %, 48.0 s to go")
    assert f"; {said}; " in view.pulse(body)


def test_a_service_names_the_runs_of_its_processes() -> None:
    sessions = [a_session(), a_session(run_id="eval-3", pid=8)]
    lines = shown(a_body(service=True, sessions=sessions))
    assert lines[0] == "service (pid 26810), for 16 s, watching"
    assert [line.split()[0] for line in lines[2:5]] == ["run", "eval-3", "gpt-small-7"]


@pytest.mark.parametrize(
    ("phase", "words"), [("waiting", "exits at its deadline"), ("outliving", "starts again")]
)
def test_a_run_that_waits_for_a_notice_to_pass_asks_nobody_to_register(phase: str, words: str) -> None:
    """Its command has ended, and there is nothing that a notice could end unsaved."""
    said = " ".join(shown(a_body(phase=phase, command=None, sessions=[]), None))
    assert words in said
    assert "registered" not in said


def test_a_run_that_has_attached_nothing_names_why() -> None:
    said = " ".join(shown(a_body(unattached="its train() was not called yet", sessions=[]), None))
    assert (
        "--attach has attached nothing: its train() was not called yet; a notice now would end the command unsaved"
        in said
    )


@pytest.mark.parametrize("width", [40, 80, 132, None])
def test_no_line_ends_with_a_space_and_no_word_is_lost(width: int | None) -> None:
    body = a_body(sources=[a_source(**HOP_LIMIT)], sessions=[], last_outcome={"line": "drill: COMMITTED"})
    lines = shown(body, width)
    assert not [line for line in lines if line != line.rstrip()]
    said = " ".join(" ".join(lines).split())
    for words in (
        HOP_LIMIT["detail"],
        HOP_LIMIT["advice"],
        "no training process has registered yet",
        "last drill",
    ):
        assert words in said


def test_an_agent_that_does_not_answer_is_shown_with_why() -> None:
    body = {"socket": "/run/x.sock", "error": "the agent at /run/x.sock stopped answering: timed out"}
    assert shown(body) == ["no answer       the agent at /run/x.sock stopped answering: timed out"]
    assert view.pulse(body) == "no answer: the agent at /run/x.sock stopped answering: timed out"


def test_line_after_line_one_line_says_how_it_is() -> None:
    assert view.pulse(a_body()) == "run gpt-small-7; step 5210, checkpoint step 5000, 12 s ago; seeing"
    blind = view.pulse(a_body(sources=[a_source("a"), a_source("b", **HOP_LIMIT)]))
    assert blind.endswith("; b: BLIND for 7 s (hop-limit)")


def test_only_what_is_new_has_another_shape() -> None:
    """Numbers that run are no news; a sight, a notice, a step towards the commit are."""
    was = view.shape(a_body())
    later = a_body(
        for_seconds=99.0,
        sources=[a_source(for_seconds=90.0)],
        sessions=[a_session(step=5999, checkpoint_age=0.0)],
    )
    assert view.shape(later) == was
    for news in (
        a_body(sources=[a_source(**HOP_LIMIT)]),
        a_body(sessions=[]),
        a_body(phase="saving"),
        a_body(sessions=[a_session(saving={"phase": "written", "step": 1, "bytes": 0, "why": ""})]),
        {"socket": "/x", "error": "gone"},
    ):
        assert view.shape(news) != was


def test_one_is_one() -> None:
    """And two are two."""
    for restarts, words in ((0, "for 16 s, watching"), (1, "restarted 1 time,"), (2, "restarted 2 times,")):
        command = {"pid": 26954, "returncode": None, "restarts": restarts}
        assert words in view.title(a_body(command=command))


def test_incidents_that_last_are_shown_with_their_gravity_and_a_helper_that_is_gone_is_too() -> None:
    helper: dict[str, Any] = {"pid": 7, "returncode": None, "starts": 1, "dropped": 0, "firing": []}
    assert "  incidents     none" in shown(a_body(alerts=helper))
    firing = [
        {
            "alert": "disk-full",
            "severity": "critical",
            "summary": "the disk of / is nearly full",
            "for_seconds": 61.0,
        }
    ]
    body = a_body(alerts={**helper, "firing": firing, "dropped": 1200})
    assert shown(body, None)[-1] == (
        "  incidents     critical, for 61 s: the disk of / is nearly full; 1,200 messages to it were dropped"
    )
    assert view.shape(body) != view.shape(a_body(alerts=helper))
    gone = a_body(alerts={**helper, "pid": 0, "returncode": -9})
    assert shown(gone, None)[-1] == (
        "  incidents     NONE is posted: the helper of alerts has ended (-9), started 1 time; training does not depend on it"
    )
    assert not any("incidents" in line for line in shown(a_body()))


@pytest.mark.parametrize(
    ("facts", "row"),
    [
        ({}, "verified none yet, one is due every 6.0 h"),
        ({"running": 40}, "verified none yet, one is due every 6.0 h; reading step 40 now"),
        (
            {"status": "sound", "step": 20, "age": 300.0},
            "verified step 20, 5 min ago: every checksum agrees",
        ),
        (
            {
                "status": "damaged",
                "step": 20,
                "age": 300.0,
                "checkpoint": "20-1-0",
                "detail": "CRC32 differs",
            },
            "verified step 20, 5 min ago: checkpoint 20-1-0 is DAMAGED: CRC32 differs",
        ),
        (
            {"status": "unknown", "step": 20, "age": 300.0, "detail": "no answer"},
            "verified step 20, 5 min ago: not known: no answer",
        ),
    ],
)
def test_the_last_verification_has_a_row(facts: dict[str, Any], row: str) -> None:
    nothing = {"running": None, "status": None, "step": None, "checkpoint": None, "detail": "", "age": None}
    body = a_body(verification={"every": 21_600.0} | nothing | facts)
    assert row in [" ".join(text.split(maxsplit=1)) for text in shown(body, None)]
    assert "verified" not in " ".join(shown(a_body()))
