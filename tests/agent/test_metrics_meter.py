"""What is counted of an agent's life: each thing once, from what really happened, and never without bounds."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from spotguard.agent.actions import Publish
from spotguard.agent.emergency import Machine, Policy
from spotguard.agent.events import (
    Asked,
    Closed,
    Event,
    HealthChanged,
    Heard,
    Launched,
    NoticeGone,
    NoticeSeen,
    Opened,
    Signalled,
    SourceGone,
    WindowTold,
)
from spotguard.agent.looking import LookCount
from spotguard.agent.metrics.histogram import Histogram
from spotguard.agent.metrics.meter import Meter, result_of
from spotguard.agent.metrics.reading import SHOWN, Facts, Reading
from spotguard.agent.metrics.snapshot import PURPOSES, RESULTS, STAGES
from spotguard.agent.metrics.table import METRICS
from spotguard.agent.outcome import Outcome
from spotguard.hooks.protocol import Committed, Position, Progress, Register, Told
from spotguard.providers.health import SEEING, STARTING, Health, Sight, blind, wrong_server
from spotguard.providers.notice import NoticeKind, Severity
from tests.fakes.source import a_notice

UNREACHABLE = blind("unreachable", "refused")


class Life:
    """A real machine with a meter beside it, as the loop has them, by hand."""

    def __init__(self, *, command: bool = False, window: float | None = None) -> None:
        self.machine = Machine(Policy(command=command, window=window))
        self.meter = Meter()
        self.looks = LookCount()
        self.now = 1000.0
        self.outcomes: list[Outcome] = []
        self.facts = Facts("1", "agent", "r", 30.0, False, None)

    def happens(self, *events: Event | None, after: float = 0.0) -> None:
        self.now += after
        for event in events:
            for action in self.machine.handle(event, self.now):
                if isinstance(action, Publish):
                    self.outcomes.append(action.outcome)
                    self.meter.ended(action.outcome.summary())
            self.meter.take(event, self.machine, self.now)

    def joins(self, number: int = 1, *, run_id: str = "r", rank: int = 0, uid: int = 0, **more: Any) -> None:
        register = Register(100 + number, run_id, "train.py", "file:///s", rank=rank, **more)
        self.happens(Opened(number, 100 + number, uid, register))

    def says(self, message: Any, number: int = 1, *, after: float = 0.0) -> None:
        self.happens(Heard(number, message), after=after)

    def value(self, name: str, *labels: str) -> Any:
        """Of one sample; None where it is not there."""
        reading = Reading(self.facts, self.meter.newest, self.now, self.looks.totals)
        metric = next(metric for metric in METRICS if metric.name == name)
        samples = list(metric.read(reading))
        assert all(len(each) == len(metric.labels) for each, _ in samples)
        assert len(dict(samples)) == len(samples), "a series twice in one scrape"
        return dict(samples).get(labels)

    def left_at(self, stage: str, drill: str = "false") -> float:
        """Seconds that were left at this stage, where it was reached once."""
        histogram: Histogram = self.value("spotguard_stage_left_seconds", stage, drill)
        assert sum(histogram.counts) == 1, histogram
        return histogram.sum


def notice(id: str = "n1", left: float = 120.0, seen: float = 1000.0) -> NoticeSeen:
    return NoticeSeen(a_notice(id, deadline=seen + left, seen_at=seen), 0.9)


# --- sources ---


def test_blind_seconds_grow_while_nobody_tells_of_them_and_stay_when_it_is_over() -> None:
    life = Life()
    life.happens(HealthChanged("aws", STARTING, 1000.0))
    assert life.value("spotguard_source_state", "aws", "starting") == 1
    life.happens(HealthChanged("aws", UNREACHABLE, 1000.0), after=2)
    life.now += 40
    assert life.value("spotguard_blind_seconds_total", "aws", "starting") == 2
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 40
    assert life.value("spotguard_source_state", "aws", "blind") == 1
    life.happens(HealthChanged("aws", SEEING, life.now))
    life.now += 100
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 40
    assert life.value("spotguard_source_state", "aws", "blind") == 0
    assert life.value("spotguard_source_state", "aws", "seeing") == 1


def test_a_wrong_server_is_told_apart_and_blind_seconds_are_by_reason() -> None:
    life = Life()
    life.happens(HealthChanged("aws", UNREACHABLE, 1000.0))
    life.happens(HealthChanged("aws", wrong_server("a portal"), 1000.0), after=5)
    life.now += 7
    assert life.value("spotguard_source_state", "aws", "wrong-server") == 1
    assert life.value("spotguard_source_state", "aws", "blind") == 0
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 5
    assert life.value("spotguard_blind_seconds_total", "aws", "wrong-server") == 7


def test_a_source_that_nobody_looks_through_any_more_is_not_blind_for_ever() -> None:
    life = Life()
    life.happens(HealthChanged("aws", UNREACHABLE, 1000.0))
    life.happens(SourceGone("aws"), after=5)
    life.now += 100
    assert life.value("spotguard_source_state", "aws", "blind") is None
    assert life.value("spotguard_blind_seconds_total", "aws", "unreachable") == 5


def test_looks_are_counted_without_an_event() -> None:
    life = Life()
    gateway, full = (Health(Sight.BLIND, "server-error", code=code) for code in (502, 503))
    for health in (SEEING, UNREACHABLE, UNREACHABLE, gateway, full):
        life.looks.ended("aws", health)
    assert life.value("spotguard_looks_total", "aws") == 5
    assert life.value("spotguard_failed_looks_total", "aws", "unreachable", "") == 2
    assert life.value("spotguard_failed_looks_total", "aws", "server-error", "502") == 1
    assert life.value("spotguard_failed_looks_total", "aws", "server-error", "503") == 1
    assert life.value("spotguard_failed_looks_total", "aws", "", "") is None


# --- notices ---


def test_a_notice_is_counted_once_however_often_it_is_told() -> None:
    """By the cloud again, with another deadline; a mere warning that becomes the end is one of each."""
    life = Life()
    life.happens(HealthChanged("fake source", SEEING, 1000.0))
    life.happens(notice(), notice(left=60.0))
    assert life.value("spotguard_notices_total", "terminate", "fake source", "terminal") == 1
    assert sum(life.value("spotguard_notice_detection_seconds", "terminal").counts) == 1
    assert life.value("spotguard_notice_detection_seconds", "terminal").sum == 0.9
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


def test_what_is_left_is_told_at_each_stage_once() -> None:
    """By this agent's clock; what a peer calls a stage and is none has no label."""
    life = Life()
    life.joins()
    life.happens(notice())
    id, t = "n1", 0.0
    for stage, words in (
        ("told", Told(id, t)),
        ("gate", Progress(id, "gate", t, 7)),
        ("first-byte", Progress(id, "first-byte", t, 7)),
        ("written", Progress(id, "written", t, 7)),
        ("committed", Committed(id, 7, 1000, 1.0, "u", t)),
    ):
        life.says(words, after=1.0)
        assert life.left_at(stage) == 120.0 - (life.now - 1000.0)
    life.says(Told(id, t))
    life.says(Progress(id, "a stage of my own", t))
    assert {key[0] for key in life.meter.newest.left} == set(STAGES)
    assert life.left_at("told") == 119.0
    assert life.left_at("seen") == 120.0
    assert life.value("spotguard_outcomes_total", "r", "committed", "false") == 1
    assert life.value("spotguard_commit_slack_seconds", "r", "false").counts[-2] == 1  # up to 120 s


def test_a_drill_is_told_apart_to_its_last_commit() -> None:
    """The word that ends it is one of it, too."""
    life = Life()
    life.joins()
    life.happens(Asked(9, 0, 30.0, False))
    id = next(iter(life.machine.pending.ids)) if life.machine.pending else ""
    life.says(Committed(id, 7, 1000, 1.0, "u", 0.0), after=2.0)
    assert life.machine.pending is None
    assert life.left_at("committed", "true") == 28.0
    assert life.value("spotguard_outcomes_total", "r", "committed", "true") == 1
    assert life.value("spotguard_outcomes_total", "r", "committed", "false") == 0
    assert life.value("spotguard_notice_left_seconds") is None


def test_who_answers_another_notice_or_none_is_at_no_stage() -> None:
    life = Life()
    life.joins()
    life.says(Told("n0", 0.0))
    life.happens(notice())
    life.says(Told("n0", 0.0))
    assert life.value("spotguard_stage_left_seconds", "told", "false").sum == 0


@pytest.mark.parametrize(
    ("record", "result"),
    [
        ({"committed": 3.0, "level": "full"}, "committed"),
        ({"committed": 3.0, "level": "weights"}, "reduced"),
        ({"committed": None, "sessions": [{}], "ended": "the deadline came"}, "missed"),
        ({"committed": None, "sessions": [], "ended": "signalled"}, "unguarded"),
        ({"committed": None, "sessions": [{}], "ended": "withdrawn"}, "withdrawn"),
    ],
)
def test_an_outcome_has_one_result(record: dict[str, Any], result: str) -> None:
    assert result_of(record) == result
    assert result in RESULTS


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
    for cause in ("crash", "preemption"):
        assert life.value("spotguard_restarts_total", cause) == 0


def test_restarts_are_told_apart_by_their_cause() -> None:
    meter = Meter()
    for crashes in (0, 1, 1, 2):  # first start, crash, preemption, crash
        meter.launched(crashes)
    assert dict(meter.newest.restarts) == {("crash",): 2, ("preemption",): 1}


# --- training processes ---


def test_a_process_is_shown_with_what_it_knows_and_no_more() -> None:
    life = Life()
    life.joins(nbytes=0)
    who = ("r", "0", "0")
    for name in (
        "step",
        "checkpoint_step",
        "checkpoint_age_seconds",
        "checkpoint_interval_seconds",
        "state_bytes",
        "upload_bytes_per_second",
        "expected_save_seconds",
        "expected_slack_seconds",
        "fits_window",
    ):
        assert life.value(f"spotguard_{name}", *who) is None, name
    life.says(Position(3, save_seconds=27.5, rate=2.0, interval=60.0))
    assert life.value("spotguard_step", *who) == 3
    assert life.value("spotguard_checkpoint_step", *who) is None
    assert life.value("spotguard_checkpoint_interval_seconds", *who) == 60
    assert life.value("spotguard_expected_slack_seconds", *who) == -0.5  # of 30 s, 3 in reserve
    assert life.value("spotguard_fits_window", *who) == 0
    life.happens(Closed(1, "gone"))
    assert life.value("spotguard_step", *who) is None
    assert life.value("spotguard_sessions") == 0


def test_the_age_of_a_checkpoint_grows_between_words_and_a_commit_ends_it() -> None:
    life = Life()
    life.joins()
    life.says(Position(0, restored_age=0.0), after=10)
    life.now += 30
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 30
    life.says(Committed("", 5, 1000, 1.0, "u", 0.0), after=10)
    life.now += 3
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 3
    assert life.value("spotguard_checkpoint_step", "r", "0", "0") == 5
    assert life.value("spotguard_checkpoints_total", "background") == 1
    assert life.value("spotguard_checkpoint_bytes_total", "background") == 1000


def test_what_it_went_on_from_may_be_old_and_nothing_is_at_risk_yet() -> None:
    """The machine before this one was taken yesterday: that is no checkpoint that is overdue."""
    life = Life()
    life.joins()
    life.says(Position(500, checkpoint_step=500, checkpoint_age=86400.0, restored_age=0.0), after=600)
    life.now += 5
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 5


def test_who_lost_its_socket_and_came_back_is_as_old_as_before() -> None:
    """Else a socket that comes and goes would hide a checkpoint that never comes."""
    life = Life()
    life.joins(1)
    life.says(Position(1, restored_age=0.0), 1)
    life.happens(Closed(1, "reset", alive=True), after=100)
    life.happens(Opened(2, 101, 0, Register(101, "r", "train.py", "file:///s")))
    life.says(Position(90, restored_age=100.0), 2)
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == 100


@pytest.mark.parametrize(
    ("said", "age"),
    [
        # Since it restored, an hour ago, nothing was committed: there is a store that is broken.
        (Position(90, restored_age=3600.0), 3600),
        (Position(90, checkpoint_step=40, checkpoint_age=86400.0, restored_age=3600.0), 3600),
        (Position(90, checkpoint_step=80, checkpoint_age=60.0, restored_age=3600.0), 60),
        # A hook of before, which does not say how long it trains.
        (Position(90, checkpoint_step=80, checkpoint_age=60.0), 60),
        (Position(90), None),
        # Not restored yet: nothing is at risk.
        (Position(-1, checkpoint_step=80, checkpoint_age=60.0), None),
    ],
)
def test_an_agent_that_is_started_anew_goes_by_the_hook_s_word(said: Position, age: float | None) -> None:
    """Not by when it heard of the process: an old checkpoint would be new with each start of an agent."""
    life = Life()
    life.joins()
    life.says(said, after=5)
    assert life.value("spotguard_checkpoint_age_seconds", "r", "0", "0") == age


# --- whether it fits ---


def test_the_window_is_the_cloud_s_newest_word_of_this_machine_unless_the_user_has_said_one() -> None:
    """GCE's notice duration: 30 s are what is usual there."""
    life = Life()
    assert life.value("spotguard_window_seconds") == 30
    life.joins()
    life.says(Position(3, save_seconds=100.0))
    assert life.value("spotguard_fits_window", "r", "0", "0") == 0
    life.happens(WindowTold(60.0), WindowTold(120.0))
    assert life.value("spotguard_window_seconds") == 120
    assert life.value("spotguard_reserve_seconds") == 12
    assert life.value("spotguard_expected_slack_seconds", "r", "0", "0") == 8
    assert life.value("spotguard_fits_window", "r", "0", "0") == 1
    life.facts = replace(life.facts, window=45.0, said=True)
    assert life.value("spotguard_window_seconds") == 45
    assert life.value("spotguard_reserve_seconds") == 4.5


def test_runs_that_save_at_once_share_the_link_and_ranks_of_one_have_shown_it_together() -> None:
    """Each fits alone, both do not: 13 s and 15 s of the 27 there are."""
    life = Life()
    life.joins(1, run_id="a", rank=0)
    life.joins(2, run_id="a", rank=1)
    life.joins(3, run_id="b")
    life.says(Position(3, save_seconds=12.0), 1)
    life.says(Position(3, save_seconds=13.0), 2)
    assert life.value("spotguard_expected_slack_seconds", "a", "0", "0") == 14
    assert life.value("spotguard_fits_window", "a", "0", "0") == 1
    assert life.value("spotguard_fits_window", "b", "0", "0") is None  # has shown nothing yet
    life.says(Position(3, save_seconds=15.0), 3)
    for run_id, rank in (("a", "0"), ("a", "1"), ("b", "0")):
        assert life.value("spotguard_expected_slack_seconds", run_id, rank, "0") == -1
        assert life.value("spotguard_fits_window", run_id, rank, "0") == 0
    assert life.value("spotguard_expected_save_seconds", "b", "0", "0") == 15
    life.happens(Closed(3, "gone"))
    assert life.value("spotguard_fits_window", "a", "0", "0") == 1


def test_one_name_of_two_users_is_two_runs() -> None:
    life = Life()
    life.joins(1, uid=0)
    life.joins(2, uid=7)
    for number in (1, 2):
        life.says(Position(3, save_seconds=15.0), number)
    assert life.value("spotguard_fits_window", "r", "0", "7") == 0


def test_no_series_comes_twice_and_who_saves_by_itself_has_none() -> None:
    """Two processes under one name and rank, by mistake or one after the other: the newer one is shown."""
    life = Life()
    life.joins(1)
    life.joins(2)
    life.joins(3, uid=7)
    life.happens(Opened(4, 104, 0, Register(104, "r", "train.py")))
    life.says(Position(1), 1)
    life.says(Position(2), 2)
    life.says(Position(3), 3)
    assert life.value("spotguard_step", "r", "0", "0") == 2
    assert life.value("spotguard_step", "r", "0", "7") == 3
    assert life.value("spotguard_sessions") == 4


def test_however_many_there_are_some_are_shown_and_all_are_counted() -> None:
    life = Life()
    for number in range(SHOWN + 20):
        life.joins(number, rank=number, nbytes=1)
    metric = next(metric for metric in METRICS if metric.name == "spotguard_state_bytes")
    reading = Reading(life.facts, life.meter.newest, life.now, {})
    assert len(list(metric.read(reading))) == SHOWN
    assert life.value("spotguard_sessions") == SHOWN + 20


def test_no_peer_s_words_make_series_without_end() -> None:
    """Notices by a name that changes each time, and sources of a service agent's own making."""
    life = Life()
    for number in range(1000):
        shown = replace(a_notice(f"n{number}"), source=f"source {number}", severity=Severity.ADVISORY)
        life.happens(NoticeSeen(shown), HealthChanged(f"source {number}", UNREACHABLE, life.now))
    assert len(life.meter.newest.notices) <= 101
    assert sum(life.meter.newest.notices.values()) == 1000
    assert len(life.meter.newest.sources) <= 32


def test_a_snapshot_that_was_read_does_not_change_any_more() -> None:
    life = Life()
    life.joins()
    before = life.meter.newest
    kept = (dict(before.processes), dict(before.notices), before.phase)
    life.happens(notice(), HealthChanged("aws", UNREACHABLE, 1000.0))
    assert (dict(before.processes), dict(before.notices), before.phase) == kept
    assert life.meter.newest is not before


# --- histograms ---


def test_a_histogram_adds_up_as_prometheus_reads_it() -> None:
    one = Histogram.empty((0.0, 1.0, 10.0))
    for value in (-3.0, 0.5, 1.0, 9.0, 99.0):
        one = one.observe(value)
    assert one.cumulative == [("0.0", 1.0), ("1.0", 3.0), ("10.0", 4.0), ("+Inf", 5.0)]
    assert one.sum == 109.5


def test_another_machine_s_notice_leaves_no_deadline_here() -> None:
    life = Life(command=True)
    life.happens(Launched(50))
    life.joins()
    life.happens(NoticeSeen(replace(a_notice(), kind=NoticeKind.PEER)))
    assert life.value("spotguard_agent_phase", "saving") == 1
    assert life.value("spotguard_notice_left_seconds") is None
    assert life.value("spotguard_stage_left_seconds", "seen", "false").sum == 0


def test_health_without_a_reason_is_seeing() -> None:
    life = Life()
    life.happens(HealthChanged("aws", Health(SEEING.sight, detail="worth knowing"), 1000.0))
    assert life.value("spotguard_source_state", "aws", "seeing") == 1
    assert life.value("spotguard_blind_seconds_total", "aws", "") is None
