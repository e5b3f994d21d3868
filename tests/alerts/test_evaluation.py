"""When an alert begins and when it ends: for values against numbers, other metrics and their own history, and for incidents."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from spotguard.alerts.evaluation import CLEAR, Alert, Evaluation
from spotguard.alerts.rule_file import default_rules
from spotguard.alerts.rules import Rule

EVERY = 10.0
MINUTE = 6


class Watch:
    """An evaluation, and its time."""

    def __init__(self, *rules: Rule) -> None:
        self.evaluation = Evaluation(rules)
        self.now = 1000.0

    def sample(self, *values: tuple[str, list[str], float], times: int = 1) -> list[Alert]:
        found: list[Alert] = []
        for _ in range(times):
            self.now += EVERY
            found += self.evaluation.sample(values, self.now)
        return found

    def incident(self, what: str, **facts: Any) -> list[Alert]:
        return list(self.evaluation.incident(what, facts, self.now))


def short(alerts: Iterable[Alert]) -> list[tuple[str, bool]]:
    """The names of alerts, and whether each begins."""
    return [(alert.rule.name, alert.ended is None) for alert in alerts]


def disk(free: float, place: str = "/") -> tuple[str, list[str], float]:
    return "spotguard_disk_free_ratio", [place], free


FULL = Rule(
    "full",
    metric="spotguard_disk_free_ratio",
    compare="<",
    threshold=0.1,
    lasts=30.0,
    summary="{place} has {value}",
)


def test_a_value_must_hold_for_its_time_and_begins_once() -> None:
    watch = Watch(FULL)
    assert watch.sample(disk(0.05), times=3) == []
    (alert,) = watch.sample(disk(0.04))
    assert (alert.summary, alert.labels, alert.began, alert.ended) == (
        "/ has 0.04",
        (("place", "/"),),
        1010.0,
        None,
    )
    assert watch.sample(disk(0.05), times=20) == []
    assert watch.evaluation.firing == [alert]


def test_a_value_that_recovers_before_its_time_makes_no_alert() -> None:
    watch = Watch(FULL)
    for _ in range(10):
        assert watch.sample(disk(0.05), times=2) == []
        assert watch.sample(disk(0.5)) == []
    assert watch.evaluation.firing == []


def test_an_alert_ends_when_it_has_not_held_for_a_minute_and_not_at_the_edge() -> None:
    watch = Watch(FULL)
    watch.sample(disk(0.05), times=4)
    for _ in range(10):
        assert watch.sample(disk(0.11), disk(0.5, "/other"), times=int(CLEAR / EVERY) - 1) == []
        assert watch.sample(disk(0.05)) == []
    found = watch.sample(disk(0.5), times=20)
    assert short(found) == [("full", False)]
    assert watch.evaluation.firing == []


def test_each_set_of_labels_is_an_alert_of_its_own_and_ends_with_its_series() -> None:
    watch = Watch(FULL)
    found = watch.sample(disk(0.05), disk(0.01, "/data"), times=4)
    assert {dict(alert.labels)["place"] for alert in found} == {"/", "/data"}
    (gone,) = watch.sample(disk(0.05), times=10)
    assert (gone.labels, gone.ended is None) == ((("place", "/data"),), False)


def checkpoint(age: float, interval: float | None) -> list[tuple[str, list[str], float]]:
    who = ["gpt", "0", "1000"]
    values = [("spotguard_checkpoint_age_seconds", who, age)]
    return values if interval is None else [*values, ("spotguard_checkpoint_interval_seconds", who, interval)]


def test_a_threshold_may_be_a_multiple_of_another_metric_of_the_same_labels() -> None:
    """Without that metric (background checkpoints are off) nothing is compared."""
    (rule,) = [rule for rule in default_rules() if rule.name == "checkpoint-old"]
    watch = Watch(rule)
    assert watch.sample(*checkpoint(290.0, 100.0), times=30) == []
    assert watch.sample(*checkpoint(1e6, None), times=30) == []
    assert watch.sample(*checkpoint(310.0, 100.0), times=90) == []  # the first step
    assert short(watch.sample(*checkpoint(310.0, 100.0))) == [("checkpoint-old", True)]


def step(seconds: float) -> tuple[str, list[str], float]:
    return "spotguard_step_seconds", ["gpt", "0", "1000"], seconds


def test_a_machine_that_trains_more_slowly_than_the_one_before_is_an_alert() -> None:
    """It may be throttled from its first minute on. A first attempt has nothing to compare with."""
    (rule,) = [rule for rule in default_rules() if rule.name == "slow-machine"]
    watch = Watch(rule)
    before = ("spotguard_earlier_step_seconds", ["gpt", "0", "1000"], 1.0)
    assert watch.sample(step(9.0), times=40 * MINUTE) == []
    watch = Watch(rule)
    assert watch.sample(step(1.4), before, times=40 * MINUTE) == []
    assert short(watch.sample(step(1.8), before, times=40 * MINUTE)) == [("slow-machine", True)]


SLOW = Rule("slow", metric="spotguard_step_seconds", threshold=2.0, of="history", window=60.0, lasts=60.0)


def test_twice_the_history_needs_a_history() -> None:
    watch = Watch(SLOW)
    assert watch.sample(step(1.0), times=5 * MINUTE) == []
    assert watch.sample(step(9.0), times=5 * MINUTE) == []


def test_a_slow_hour_is_seen_against_the_history_and_single_slow_steps_are_not() -> None:
    """The median over the window and the median before: an evaluation now and then counts for neither."""
    watch = Watch(SLOW)
    for _ in range(30):
        assert watch.sample(step(1.0), times=MINUTE - 1) == []
        assert watch.sample(step(40.0)) == []
    assert watch.sample(step(1.9), times=10 * MINUTE) == []
    assert short(watch.sample(step(2.5), times=5 * MINUTE)) == [("slow", True)]
    assert short(watch.sample(step(1.0), times=5 * MINUTE)) == [("slow", False)]


def test_what_stays_slow_becomes_usual() -> None:
    watch = Watch(SLOW)
    watch.sample(step(1.0), times=30 * MINUTE)
    found = short(watch.sample(step(3.0), times=4 * 60 * MINUTE))
    assert found == [("slow", True), ("slow", False)]


def validation(loss: float, name: str = "validation_loss") -> tuple[str, list[str], float]:
    return "spotguard_metric", ["r", "0", "0", name], loss


@pytest.mark.parametrize("bad", [4.0, math.inf, math.nan])
def test_a_validation_loss_that_has_risen_or_is_none_is_seen_against_its_history(bad: float) -> None:
    """A number that is not finite never becomes history. Other numbers of the script are none of the rule's business."""
    rule = Rule("high", "spotguard_metric", where={"name": ("validation_loss",)}, threshold=1.5, of="history")
    watch = Watch(rule)
    noisy = random.Random(0)
    for _ in range(100):  # an evaluation each ten minutes, whose loss varies by a tenth
        loss = noisy.gauss(2.0, 0.2)
        assert watch.sample(validation(loss), validation(100 * loss, "perplexity"), times=10 * MINUTE) == []
    (alert,) = watch.sample(validation(bad), validation(1.0, "perplexity"))
    assert dict(alert.labels)["name"] == "validation_loss"
    watch.sample(validation(bad), times=90 * MINUTE)
    assert short(watch.sample(validation(2.0), times=7)) == [("high", False)]


def test_no_number_is_not_below_a_threshold() -> None:
    watch = Watch(Rule("reached", "spotguard_metric", compare="<", threshold=1.0))
    assert watch.sample(validation(math.nan), times=10) == []
    assert short(watch.sample(validation(0.5))) == [("reached", True)]


def test_one_value_that_is_no_number_does_not_make_a_window_s_median() -> None:
    """Wherever in the window it is. If most are none, the median is none."""
    watch = Watch(Rule("high", "spotguard_metric", threshold=5.0, window=60.0))
    for bad in (math.nan, math.inf):
        assert watch.sample(validation(1.0), times=MINUTE) == []
        assert watch.sample(validation(bad)) == []
    assert watch.sample(validation(1.0), times=MINUTE) == []
    assert short(watch.sample(validation(math.nan), times=MINUTE)) == [("high", True)]


def test_a_robust_deviation_is_counted_in_the_history_s_own_spread() -> None:
    rule = Rule("odd", metric="spotguard_step_seconds", deviation=5.0)
    watch = Watch(rule)
    for at in range(60):
        assert watch.sample(step(1.0 + 0.1 * (at % 3)), times=MINUTE) == []
    assert watch.sample(step(1.5)) == []
    assert short(watch.sample(step(2.0))) == [("odd", True)]


def test_a_counter_counts_by_its_rise_in_the_window_and_may_begin_anew() -> None:
    rule = Rule("ecc", metric="spotguard_gpu_ecc_errors_total", threshold=0.0, window=60.0)
    watch = Watch(rule)
    count = "spotguard_gpu_ecc_errors_total"
    assert watch.sample((count, ["0"], 70.0), times=10) == []
    assert short(watch.sample((count, ["0"], 71.0))) == [("ecc", True)]
    assert short(watch.sample((count, ["0"], 71.0), times=20)) == [("ecc", False)]
    assert watch.sample((count, ["0"], 0.0)) == []
    assert short(watch.sample((count, ["0"], 2.0))) == [("ecc", True)]


def test_a_disk_that_became_slow_is_seen_against_the_job_s_usual_rate() -> None:
    """Neither the first minutes, whose window is not full yet, nor loads that vary make an alert."""
    disk_read = "spotguard_disk_read_bytes_total"
    rule = Rule("slow", disk_read, compare="<", deviation=6.0, window=600.0, lasts=600.0)
    watch, varies, total = Watch(rule), random.Random(0), 0.0
    for _ in range(6 * 60 * MINUTE):
        total += 1e9 * varies.uniform(0.5, 1.5)
        assert watch.sample((disk_read, ["stage"], total)) == []
    found: list[Alert] = []
    for _ in range(25 * MINUTE):
        total += 3e8
        found += watch.sample((disk_read, ["stage"], total))
    assert short(found) == [("slow", True)]


def test_the_alerts_of_metrics_end_with_the_run_and_those_of_incidents_do_not() -> None:
    watch = Watch(FULL, *default_rules())
    watch.sample(disk(0.05), times=4)
    watch.incident("failure", run_id="gpt", **{"class": "program", "text": "x"})
    assert short(watch.evaluation.close(watch.now)) == [("full", False)]
    assert [alert.rule.name for alert in watch.evaluation.firing] == ["failure"]


# --- incidents ---


def test_a_failure_begins_at_once_and_ends_when_its_run_trains_again() -> None:
    watch = Watch(*default_rules())
    (alert,) = watch.incident("failure", run_id="gpt", rank=1, text="rank 1: bad sample", **{"class": "data"})
    assert alert.summary == "training failed (data): rank 1: bad sample"
    assert dict(alert.labels) == {"run_id": "gpt", "rank": "1", "class": "data"}
    assert watch.incident("training", run_id="other") == []
    (over,) = watch.incident("training", run_id="gpt")
    assert (over.labels, over.ended) == (alert.labels, watch.now)
    assert watch.incident("training", run_id="gpt") == []


def test_a_stall_ends_when_its_run_moves() -> None:
    watch = Watch(*default_rules())
    assert short(watch.incident("stall", run_id="gpt", rank=0, text="rank 0 in data")) == [("stall", True)]
    assert short(watch.incident("moving", run_id="gpt")) == [("stall", False)]


def test_an_incident_s_alert_ends_after_its_time() -> None:
    watch = Watch(*default_rules())
    watch.incident("failure", run_id="gpt", text="x")
    assert list(watch.evaluation.expire(watch.now + 3599)) == []
    assert short(watch.evaluation.expire(watch.now + 3600)) == [("failure", False)]


@pytest.mark.parametrize("kind", ["moving", "training", "launch", "gone", "failure"])
def test_a_stall_lasts_until_its_run_moves_begins_anew_or_is_gone(kind: str) -> None:
    watch = Watch(*(rule for rule in default_rules() if rule.name == "stall"))
    (alert,) = watch.incident("stall", run_id="gpt", text="x")
    assert alert.until is None
    assert list(watch.evaluation.expire(watch.now + 1e6)) == []
    assert watch.incident("gone", run_id="other") == []
    assert short(watch.incident(kind, run_id="gpt")) == [("stall", False)]


def test_a_stall_ends_with_its_agent_s_own_end_and_not_with_its_death() -> None:
    for ended, found in ((False, []), (True, [("stall", False)])):
        watch = Watch(*default_rules())
        watch.incident("stall", run_id="gpt", text="x")
        assert short(watch.evaluation.close(watch.now, ended=ended)) == found


def test_an_error_in_one_rule_hides_no_other_and_names_it(caplog: pytest.LogCaptureFixture) -> None:
    bad = replace(FULL, name="bad", summary="{value:.2f}", lasts=0.0)
    of_incident = Rule("worse", incident="stall", summary="{text!x}")
    watch = Watch(bad, of_incident, replace(FULL, lasts=0.0), *default_rules())
    assert short(watch.sample(disk(0.01))) == [("full", True)]
    assert short(watch.incident("stall", run_id="gpt", text="x")) == [("stall", True)]
    assert caplog.messages == [f"rule {name} cannot be evaluated [SG113]" for name in ("bad", "worse")]


def test_an_outcome_is_an_alert_only_if_a_real_preemption_lost_steps() -> None:
    watch = Watch(*default_rules())
    assert watch.incident("outcome", failed=False, drill=False, line="committed") == []
    assert watch.incident("outcome", failed=True, drill=True, line="a drill") == []
    (alert,) = watch.incident(
        "outcome", failed=True, drill=False, kind="terminate", line="NOT COMMITTED (slow)"
    )
    assert alert.summary == "a preemption has cost steps: NOT COMMITTED (slow)"


def test_what_a_summary_names_and_the_incident_lacks_is_a_question_mark() -> None:
    watch = Watch(*default_rules())
    (alert,) = watch.incident("failure", run_id="gpt")
    assert alert.summary == "training failed (?): ?"


def test_a_line_that_the_kernel_repeats_is_one_alert_and_a_failure_each_time_one() -> None:
    watch = Watch(*default_rules())
    xid = {"kind": "xid", "xid": 79, "scope": "machine", "text": "lost"}
    assert short(watch.incident("kernel", **xid)) == [("gpu-error", True)]
    assert watch.incident("kernel", **xid) == []
    watch.now += 301
    assert short(watch.incident("kernel", **xid)) == [("gpu-error", True)]
    for _ in range(2):
        assert short(watch.incident("failure", run_id="gpt", text="x")) == [("failure", True)]
