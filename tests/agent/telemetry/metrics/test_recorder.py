"""What is counted of an agent's life: each thing once, from what really happened, and never without bounds."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import (
    Asked,
    Closed,
    HealthChanged,
    Launched,
    NoticeGone,
    NoticeSeen,
    Signalled,
    SourceGone,
    Verified,
)
from spotguard.agent.process.helpers.alert_helper import HelperState
from spotguard.agent.telemetry.metrics.definitions import METRICS, PURPOSES, RESULTS, STAGES
from spotguard.agent.telemetry.metrics.recorder import result_of
from spotguard.hooks.ipc.protocol import Committed, Delivered, Position, Progress, TrainingFailed
from spotguard.providers.health import SEEING, STARTING, Health, Sight, wrong_server
from spotguard.providers.notice import NoticeKind, Severity
from tests.agent.telemetry.metrics.metered import UNREACHABLE, Life, notice
from tests.fakes.source import a_notice

# --- sources ---


def test_blind_seconds_grow_while_nobody_tells_of_them_and_stay_when_it_is_over() -> None:
    life = Life()
    life.happens(HealthChanged("aws", STARTING, 1000.0))
    assert life.value("spotguard_source_state", "aws", "starting") == 1
    life.happens(HealthChanged("aws", UNREACHABLE, 1000.0), after=2)
    life.passes(40)
    assert life.value("spotguard_blind_seconds_total", "aws", "starting") == 2
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 40
    assert life.value("spotguard_source_state", "aws", "blind") == 1
    life.happens(HealthChanged("aws", SEEING, life.now))
    life.passes(100)
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 40
    assert life.value("spotguard_source_state", "aws", "blind") == 0
    assert life.value("spotguard_source_state", "aws", "seeing") == 1


def test_a_wrong_server_is_told_apart_and_blind_seconds_are_by_reason() -> None:
    life = Life()
    life.happens(HealthChanged("aws", UNREACHABLE, 1000.0))
    life.happens(HealthChanged("aws", wrong_server("a portal"), 1000.0), after=5)
    life.passes(7)
    assert life.value("spotguard_source_state", "aws", "wrong-server") == 1
    assert life.value("spotguard_source_state", "aws", "blind") == 0
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 5
    assert life.value("spotguard_blind_seconds_total", "aws", "wrong-server") == 7


def test_a_source_that_nobody_looks_through_any_more_is_not_blind_for_ever() -> None:
    life = Life()
    life.happens(HealthChanged("aws", UNREACHABLE, 1000.0))
    life.happens(SourceGone("aws"), after=5)
    life.passes(100)
    assert life.value("spotguard_source_state", "aws", "blind") is None
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 5


def test_looks_are_counted_without_an_event() -> None:
    life = Life()
    gateway, full = (Health(Sight.BLIND, "server-error", code=code) for code in (502, 503))
    for health in (SEEING, UNREACHABLE, UNREACHABLE, gateway, full):
        life.meter.polled("aws", health)
    assert life.value("spotguard_source_polls_total", "aws") == 5
    assert life.value("spotguard_source_poll_failures_total", "aws", "unreachable", "") == 2
    assert life.value("spotguard_source_poll_failures_total", "aws", "server-error", "502") == 1
    assert life.value("spotguard_source_poll_failures_total", "aws", "server-error", "503") == 1
    assert life.value("spotguard_source_poll_failures_total", "aws", "", "") is None


# --- notices ---


def test_a_notice_is_counted_once_however_often_it_is_told() -> None:
    """By the cloud again, with another deadline; a mere warning that becomes the end is one of each."""
    life = Life()
    life.happens(HealthChanged("fake source", SEEING, 1000.0))
    life.happens(notice(), notice(left=60.0))
    assert life.value("spotguard_notices_total", "terminate", "fake source", "terminal") == 1
    assert life.value("spotguard_notice_detection_seconds_count", "terminal") == 1
    assert life.value("spotguard_notice_detection_seconds_sum", "terminal") == 0.9
    later = replace(a_notice("n2"), severity=Severity.LATER, deadline=9000.0)
    life.happens(NoticeSeen(later))
    assert life.value("spotguard_notices_total", "terminate", "fake source", "later") == 1


def test_a_drill_and_a_signal_are_notices_too() -> None:
    life = Life()
    life.joins()
    life.happens(Asked(9, 0, 30.0, False))
    assert life.value("spotguard_notices_total", "drill", "spotguard drill", "terminal") == 1
    run = Life(command=True)
    run.happens(Launched(50))
    run.joins()
    run.happens(Signalled(signal.SIGTERM))
    assert run.value("spotguard_notices_total", "signal", "SIGTERM", "terminal") == 1
    assert run.value("spotguard_notice_left_seconds") == 25


def test_each_stage_counts_the_seconds_left_once() -> None:
    """By this agent's clock; what a peer calls a stage and is none has no label."""
    life = Life()
    life.joins()
    life.happens(notice())
    id, t = "n1", 0.0
    for stage, words in (
        ("delivered", Delivered(id, t)),
        ("gate", Progress(id, "gate", t, 7)),
        ("first-byte", Progress(id, "first-byte", t, 7)),
        ("written", Progress(id, "written", t, 7)),
        ("committed", Committed(id, 7, 1000, 1.0, "u", t)),
    ):
        life.says(words, after=1.0)
        assert life.left_at(stage) == 120.0 - (life.now - 1000.0)
    life.says(Delivered(id, t))
    life.says(Progress(id, "a stage of my own", t))
    shown = life.samples()
    assert {key[1] for key in shown if key[0] == "spotguard_stage_left_seconds_count"} == set(STAGES)
    assert life.left_at("delivered") == 119.0
    assert life.left_at("seen") == 120.0
    assert life.value("spotguard_outcomes_total", "r", "committed", "false") == 1
    assert life.value("spotguard_commit_slack_seconds_bucket", "r", "false", "90.0") == 0
    assert life.value("spotguard_commit_slack_seconds_bucket", "r", "false", "120.0") == 1


def test_stages_of_the_next_notice_are_counted_as_well() -> None:
    life = Life()
    life.joins()
    for id in ("n1", "n2"):
        life.happens(notice(id))
        life.says(Delivered(id, 0.0))
        life.happens(NoticeGone(id))
    assert life.value("spotguard_stage_left_seconds_count", "delivered", "false") == 2


def test_a_drill_is_told_apart_to_its_last_commit() -> None:
    """The word that ends it is one of it, too."""
    life = Life()
    life.joins()
    life.happens(Asked(9, 0, 30.0, False))
    id = next(iter(life.machine.preemption.ids)) if life.machine.preemption else ""
    life.says(Committed(id, 7, 1000, 1.0, "u", 0.0), after=2.0)
    assert life.machine.preemption is None
    assert life.left_at("committed", "true") == 28.0
    assert life.value("spotguard_outcomes_total", "r", "committed", "true") == 1
    assert life.value("spotguard_outcomes_total", "r", "committed", "false") == 0
    assert life.value("spotguard_notice_left_seconds") is None


def test_an_answer_to_another_notice_counts_for_no_stage() -> None:
    life = Life()
    life.joins()
    life.says(Delivered("n0", 0.0))
    life.happens(notice())
    life.says(Delivered("n0", 0.0))
    assert life.value("spotguard_stage_left_seconds_count", "delivered", "false") == 0


@pytest.mark.parametrize(
    ("record", "result"),
    [
        ({"committed": 3.0, "level": "full"}, "committed"),
        ({"committed": 3.0, "level": "weights"}, "reduced"),
        ({"committed": None, "sessions": [{}], "ended": "the deadline came"}, "missed"),
        ({"committed": None, "sessions": [], "ended": "signalled"}, "unguarded"),
        ({"committed": None, "sessions": [{}], "ended": "withdrawn"}, "withdrawn"),
        ({"committed": None, "sessions": [{}], "ended": "broken off: a real notice came"}, "withdrawn"),
    ],
)
def test_an_outcome_has_one_result(record: dict[str, Any], result: str) -> None:
    assert result_of(record) == result
    assert result in RESULTS


@pytest.mark.parametrize("kind", ["stall", "restart"])
def test_the_save_of_a_stall_is_the_end_of_no_notice(kind: str) -> None:
    life = Life()
    before = life.samples()
    life.meter.ended(
        {"kind": kind, "drill": kind == "stall", "committed": None, "sessions": [{}], "ended": ""}
    )
    assert life.samples() == before


def test_a_withdrawn_notice_is_no_missed_commit() -> None:
    life = Life()
    life.joins()
    life.happens(notice(), NoticeGone("n1"))
    assert [each.ended for each in life.outcomes] == ["withdrawn"]
    assert life.value("spotguard_outcomes_total", "r", "withdrawn", "false") == 1


def test_every_result_stands_at_0_before_anything_has_happened() -> None:
    """To Prometheus, a counter that begins with 1 has not risen."""
    life = Life()
    for result in RESULTS:
        assert life.value("spotguard_outcomes_total", "r", result, "false") == 0
    for purpose in PURPOSES:
        assert life.value("spotguard_checkpoints_total", purpose) == 0
    for cause in ("crash", "stall", "preemption"):
        assert life.value("spotguard_restarts_total", cause) == 0


def test_restarts_are_told_apart_by_their_cause() -> None:
    life = Life()
    life.meter.launched(0)
    for crashes, failure in ((1, "network"), (1, ""), (2, ""), (3, "stall")):
        life.meter.launched(crashes, failure)
    restarts = [life.value("spotguard_restarts_total", cause) for cause in ("crash", "preemption", "stall")]
    assert restarts == [2, 1, 1]


# --- bounds ---


def test_no_peer_s_words_make_series_without_end() -> None:
    """Notices by a name that changes each time, and sources of a service agent's own making."""
    life = Life()
    for number in range(1000):
        shown = replace(a_notice(f"n{number}"), source=f"source {number}", severity=Severity.ADVISORY)
        life.happens(NoticeSeen(shown), HealthChanged(f"source {number}", UNREACHABLE, life.now))
    samples = life.samples()
    counts = [count for key, count in samples.items() if key[0] == "spotguard_notices_total"]
    assert len(counts) <= 101
    assert sum(counts) == 1000
    assert len({key[1] for key in samples if key[0] == "spotguard_source_state"}) == 32


def test_each_metric_of_the_table_has_its_type_and_help_in_every_scrape() -> None:
    """Without a number, too: the strict parser of OpenMetrics reads it."""
    text = generate_latest(Life().registry).decode()  # type: ignore[no-untyped-call]
    parsed = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    families = {family.name: (family.type, family.documentation) for family in parsed}
    assert families == {each.name.removesuffix("_total"): (each.type, each.help) for each in METRICS}


def test_a_process_that_joins_in_the_middle_of_a_scrape_does_not_break_it() -> None:
    life = Life()
    life.joins(1)
    life.says(Position(5, restored_age=1.0))

    def joins() -> None:
        life.scraped = lambda: None
        life.joins(2, rank=1)
        life.says(Position(6, restored_age=1.0), 2)

    life.scraped = joins
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 1
    assert life.value("spotguard_checkpoint_age_seconds", "r", "1", "0") == 1


def test_series_of_a_source_and_a_run_go_with_them_and_their_counts_stay() -> None:
    life = Life(command=True)
    life.happens(Launched(100), HealthChanged("aws", UNREACHABLE, life.now))
    life.joins()
    life.says(Position(5, phase="data", still=1801.0))
    life.says(Position(6, phase="data", still=0.0), after=2.0)
    life.happens(Closed(1, "gone"), SourceGone("aws"))
    names = {key[0] for key in life.samples() if {"r", "aws"} & set(key[1:])}
    assert not names & {"spotguard_source_state", "spotguard_stalled", "spotguard_silent_machines"}
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 2
    assert life.value("spotguard_stalls_total", "r") == 1


def test_a_time_below_zero_counts_as_zero_in_a_histogram() -> None:
    """A sum that falls would be a counter that was reset."""
    life = Life()
    for slack in (-3.0, 0.5, 1.0, 9.0, 199.0):
        life.meter.ended({"committed": 1.0, "level": "full", "slack": slack})
    shown = life.samples()
    name = "spotguard_commit_slack_seconds"
    buckets = [shown[f"{name}_bucket", "r", "false", le] for le in ("0.0", "1.0", "10.0", "120.0", "+Inf")]
    assert buckets == [1, 3, 4, 4, 5]
    assert shown[f"{name}_sum", "r", "false"] == 209.5
    assert shown[f"{name}_count", "r", "false"] == 5


def test_another_machine_s_notice_leaves_no_deadline_here() -> None:
    life = Life(command=True)
    life.happens(Launched(50))
    life.joins()
    life.happens(NoticeSeen(replace(a_notice(), kind=NoticeKind.PEER)))
    assert life.value("spotguard_agent_phase", "saving") == 1
    assert life.value("spotguard_notice_left_seconds") is None
    assert life.value("spotguard_stage_left_seconds_count", "seen", "false") == 0


def test_health_without_a_reason_is_seeing() -> None:
    life = Life()
    life.happens(HealthChanged("aws", Health(SEEING.sight, detail="worth knowing"), 1000.0))
    assert life.value("spotguard_source_state", "aws", "seeing") == 1
    assert life.value("spotguard_blind_seconds_total", "aws", "") is None


# --- steps, stalls, failures, and the helper of alerts ---


def test_a_step_s_seconds_are_known_after_three_positions_and_go_with_the_last_minute() -> None:
    life = Life()
    life.joins()
    who = ("spotguard_step_seconds", "r", "0", "0")
    for step in (5, 6):
        life.says(Position(step), after=2.0)
        assert life.value(*who) is None
    life.says(Position(8), after=2.0)
    assert life.value(*who) == 1.0
    life.says(Position(8), after=50.0)  # it stands, which makes no step longer
    assert life.value(*who) == 1.0
    for step in range(9, 60):
        life.says(Position(step), after=3.0)
    assert life.value(*who) == 3.0


def test_a_pause_between_two_steps_is_no_step_s_time() -> None:
    life = Life()
    life.joins()
    for step in range(5, 20):
        life.says(Position(step), after=2.0)
    life.says(Position(20), after=300.0)  # an evaluation
    for step in range(21, 24):
        life.says(Position(step), after=2.0)
        assert life.value("spotguard_step_seconds", "r", "0", "0") == 2.0


def test_steps_count_anew_when_training_goes_back() -> None:
    life = Life()
    life.joins()
    for step in (100, 101, 102, 50):
        life.says(Position(step), after=2.0)
    assert life.value("spotguard_step_seconds", "r", "0", "0") is None


def test_a_run_that_stands_still_is_1_until_it_moves_and_is_counted() -> None:
    life = Life(command=True)
    life.happens(Launched(100))
    life.joins()
    for _ in range(3):
        life.says(Position(5, phase="data", still=0.0), after=2.0)
    assert (life.value("spotguard_stalled", "r"), life.value("spotguard_stalls_total", "r")) == (0, 0)
    life.says(Position(5, phase="data", still=1801.0), after=2.0)
    assert (life.value("spotguard_stalled", "r"), life.value("spotguard_stalls_total", "r")) == (1, 1)
    life.says(Position(6, phase="data", still=0.0), after=2.0)
    assert (life.value("spotguard_stalled", "r"), life.value("spotguard_stalls_total", "r")) == (0, 1)


def test_a_service_counts_the_errors_that_processes_report() -> None:
    """It sees no command fail. A class that this agent does not know is one of the program."""
    life = Life()
    life.joins()
    for kind in ("data", "of-a-newer-hook"):
        life.says(TrainingFailed(kind, "ValueError", "x", "train.py:3", "data", "f", 7))
    assert life.value("spotguard_failures_total", "data") == 1
    assert life.value("spotguard_failures_total", "program") == 1


def test_the_helper_s_state_and_what_it_reads_are_shown_and_are_absent_without_one() -> None:
    life = Life()
    assert life.value("spotguard_helper_up") is None
    report = {
        "firing": [{"alert": "stall", "severity": "critical"}, {"alert": "stall", "severity": "critical"}],
        "readings": [["spotguard_disk_free_ratio", ["/"], 0.25], ["spotguard_gpu_up", ["0"], 1.0]],
    }
    life.meter.helped(HelperState(pid=7, starts=2, dropped=3, report=report))
    assert life.value("spotguard_helper_up") == 1
    assert life.value("spotguard_helper_starts_total") == 2
    assert life.value("spotguard_helper_dropped_total") == 3
    assert life.value("spotguard_alerts_firing", "stall", "critical") == 2
    assert life.value("spotguard_disk_free_ratio", "/") == 0.25
    assert life.value("spotguard_gpu_up", "0") == 1
    life.meter.helped(HelperState(pid=0, returncode=-9, starts=2))
    assert life.value("spotguard_helper_up") == 0
    assert life.value("spotguard_disk_free_ratio", "/") is None


def test_counters_of_the_helper_s_readings_begin_anew_with_the_helper() -> None:
    """Prometheus takes the fall for a reset. A name or a label that the table does not have is no series."""
    life = Life()
    name = "spotguard_kernel_errors_total"

    def reports(*readings: list[Any]) -> None:
        life.meter.helped(HelperState(pid=7, starts=1, report={"readings": readings}))

    reports([name, ["oom"], 2.0], ["spotguard_memory_used_ratio", [], 0.5], ["a name", ["x"], 1.0])
    reports([name, ["oom"], 5.0], [name, ["xid", "more"], 1.0])
    assert life.value(name, "oom") == 5
    assert life.value("spotguard_memory_used_ratio") is None
    reports([name, ["oom"], 1.0], ["spotguard_memory_used_ratio", [], 0.75])
    assert life.value(name, "oom") == 1
    assert life.value("spotguard_memory_used_ratio") == 0.75
    assert [key for key in life.samples() if key[0] == name] == [(name, "oom")]


def test_a_verification_counts_once_by_its_result_and_not_at_all_if_it_was_stopped() -> None:
    life = Life()
    life.machine = Machine(Policy(command=True, verify_every=60.0))
    life.machine.begin(life.now)
    life.happens(Launched(100))
    life.joins(run_id="r")
    life.says(Position(30, 20, 5.0))
    life.says(Position(30, 20, 5.0), after=61)
    life.happens(Verified(7, "damaged", 20))
    assert life.value("spotguard_verifications_total", "damaged") == 0
    life.happens(Verified(1, "sound", 20), None)
    values = [
        life.value("spotguard_verifications_total", result) for result in ("sound", "damaged", "unknown")
    ]
    assert values == [1, 0, 0]
