"""The table of an agent's metrics: for each one its name, type and meaning, and the function that reads it from a snapshot.

Pure: of Prometheus it uses only the conventions (base units, `_total`). A test compares docs/reference/metrics.md with this table.
"""

from __future__ import annotations

from typing import Any

from .helper_definitions import METRICS_OF_HELPER
from .histogram import Histogram
from .scrape import (
    WHO,
    Metric,
    Scrape,
    all_of,
    blind_seconds,
    checkpoint_age,
    ended_polls,
    expected_slack,
    failed_polls,
    fits_window,
    named,
    of_each,
    phases,
    progress_age,
    reserve,
    script_metrics,
    seconds_left,
    silent,
    single,
    stalled,
    stalls,
    states,
    which,
    window,
)
from .snapshot import PHASES

METRICS: tuple[Metric, ...] = (
    # --- the agent ---
    Metric(
        "spotguard_agent_info",
        "gauge",
        ("version", "command", "run_id"),
        "Always 1, with the command, the run and the version of this spotguard.",
        lambda r: [((r.facts.version, r.facts.command, r.facts.run_id), 1.0)],
    ),
    Metric(
        "spotguard_agent_phase",
        "gauge",
        ("phase",),
        "1 for the present phase: watching, saving, ending, outliving, waiting or rejoining; else 0.",
        lambda r: which(PHASES, r.at.phase),
    ),
    Metric(
        "spotguard_sessions",
        "gauge",
        (),
        "Registered training processes.",
        lambda r: single(len(r.at.processes)),
    ),
    Metric(
        "spotguard_restarts_total",
        "counter",
        ("cause",),
        "Starts of the command after its first one.",
        lambda r: all_of(r.at.restarts),
    ),
    Metric(
        "spotguard_failures_total",
        "counter",
        ("class",),
        "Failures of the command, by the class of the cause.",
        lambda r: all_of(r.at.failures),
    ),
    Metric(
        "spotguard_stalled",
        "gauge",
        ("run_id",),
        "1 while a run stands still for too long, else 0.",
        stalled,
    ),
    Metric(
        "spotguard_stalls_total",
        "counter",
        ("run_id",),
        "Times that a run stood still for too long.",
        stalls,
    ),
    Metric(
        "spotguard_silent_machines",
        "gauge",
        ("run_id",),
        "Other machines of a run whose agents send no heartbeats any more.",
        silent,
    ),
    Metric(
        "spotguard_agent_seconds",
        "gauge",
        (),
        "Seconds since this agent began.",
        lambda r: single(r.now - r.facts.began),
    ),
    # --- sources ---
    Metric(
        "spotguard_source_state",
        "gauge",
        ("source", "state"),
        "1 for the present health of a source: seeing, starting, blind or wrong-server; else 0.",
        states,
    ),
    Metric(
        "spotguard_blind_seconds_total",
        "counter",
        ("source", "reason"),
        "Seconds for which a source could not see notices, by reason.",
        blind_seconds,
    ),
    Metric(
        "spotguard_source_polls_total",
        "counter",
        ("source",),
        "Finished polls of a source.",
        ended_polls,
    ),
    Metric(
        "spotguard_source_poll_failures_total",
        "counter",
        ("source", "reason", "code"),
        "Polls that could not see notices, by reason and HTTP status.",
        failed_polls,
    ),
    # --- notices ---
    Metric(
        "spotguard_notices_total",
        "counter",
        ("kind", "source", "severity"),
        "Notices, by kind, source and severity: terminal, later or advisory.",
        lambda r: all_of(r.at.notices),
    ),
    Metric(
        "spotguard_notice_detection_seconds",
        "histogram",
        ("severity",),
        "Longest time that a notice can have existed before the poll that found it.",
        lambda r: all_of(r.at.detection),
    ),
    Metric(
        "spotguard_notice_left_seconds",
        "gauge",
        (),
        "Seconds until the deadline of the active notice. Absent without one.",
        lambda r: single(seconds_left(r)),
    ),
    Metric(
        "spotguard_stage_left_seconds",
        "histogram",
        ("stage", "drill"),
        "Seconds left at a notice's stages: seen, delivered, gate, first-byte, written and committed.",
        lambda r: all_of(r.at.left),
    ),
    Metric(
        "spotguard_outcomes_total",
        "counter",
        ("run_id", "result", "drill"),
        "Ended notices: committed, reduced, missed, unguarded or withdrawn.",
        lambda r: named(r, r.at.outcomes),
    ),
    Metric(
        "spotguard_commit_slack_seconds",
        "histogram",
        ("run_id", "drill"),
        "Seconds left when the last training process had committed.",
        lambda r: named(r, r.at.slack),
    ),
    # --- checkpoints ---
    Metric(
        "spotguard_checkpoints_total",
        "counter",
        ("purpose",),
        "Checkpoints committed by training processes of this machine.",
        lambda r: all_of(r.at.checkpoints),
    ),
    Metric(
        "spotguard_checkpoint_bytes_total",
        "counter",
        ("purpose",),
        "Bytes of these checkpoints.",
        lambda r: all_of(r.at.saved_bytes),
    ),
    Metric(
        "spotguard_verifications_total",
        "counter",
        ("result",),
        "Checkpoints that were read again: sound, damaged or unknown.",
        lambda r: all_of(r.at.verifications),
    ),
    # --- each training process ---
    Metric(
        "spotguard_step",
        "gauge",
        WHO,
        "Completed steps. Absent until the process has restored.",
        of_each(lambda one, r: one.step if one.step >= 0 else None),
    ),
    Metric(
        "spotguard_step_seconds",
        "gauge",
        WHO,
        "Seconds that a step took, over the last minute. Absent until it is known.",
        of_each(lambda one, r: one.step_seconds),
    ),
    Metric(
        "spotguard_earlier_step_seconds",
        "gauge",
        WHO,
        "A step's median seconds in the attempt before, if that had as many ranks.",
        of_each(lambda one, r: one.earlier_step_seconds),
    ),
    Metric(
        "spotguard_checkpoint_step",
        "gauge",
        WHO,
        "Step of the newest committed checkpoint. Absent without one.",
        of_each(lambda one, r: one.checkpoint_step if one.checkpoint_step >= 0 else None),
    ),
    Metric(
        "spotguard_checkpoint_age_seconds",
        "gauge",
        WHO,
        "Seconds since the newest checkpoint or the restore, without a running evaluation: work at risk.",
        of_each(checkpoint_age),
    ),
    Metric(
        "spotguard_checkpoint_interval_seconds",
        "gauge",
        WHO,
        "Seconds between background checkpoints. Absent if they are off.",
        of_each(lambda one, r: one.interval),
    ),
    Metric(
        "spotguard_state_bytes",
        "gauge",
        WHO,
        "Bytes of the process's state.",
        of_each(lambda one, r: one.nbytes or None),
    ),
    Metric(
        "spotguard_upload_bytes_per_second",
        "gauge",
        WHO,
        "Upload rate of the last saves. Absent before the first save.",
        of_each(lambda one, r: one.rate),
    ),
    Metric(
        "spotguard_phase",
        "gauge",
        (*WHO, "phase"),
        "1 for the present phase of training, such as data, forward or save.",
        phases,
    ),
    Metric(
        "spotguard_progress_age_seconds",
        "gauge",
        WHO,
        "Seconds since training has last shown progress. Absent if the process does not train.",
        of_each(progress_age),
    ),
    Metric(
        "spotguard_loss",
        "gauge",
        WHO,
        "The newest loss. Absent if the script passes none to the guard.",
        of_each(lambda one, r: one.loss),
    ),
    Metric(
        "spotguard_bad_loss_steps_total",
        "counter",
        WHO,
        "Steps whose losses are not finite, or spikes of ten steps; 0 without losses.",
        of_each(lambda one, r: one.bad_loss_steps),
    ),
    Metric(
        "spotguard_metric",
        "gauge",
        (*WHO, "name"),
        "The newest value of a number of the script's own (`guard.watch_metric`), such as validation_loss.",
        script_metrics,
    ),
    # --- whether a save fits into the window ---
    Metric(
        "spotguard_window_seconds",
        "gauge",
        (),
        "Seconds of warning to count on.",
        lambda r: single(window(r)),
    ),
    Metric(
        "spotguard_reserve_seconds",
        "gauge",
        (),
        "Seconds of the window that are kept back to end in order.",
        lambda r: single(reserve(r)),
    ),
    Metric(
        "spotguard_expected_save_seconds",
        "gauge",
        WHO,
        "Expected seconds of an emergency save of this process alone.",
        of_each(lambda one, r: one.save_seconds),
    ),
    Metric(
        "spotguard_expected_slack_seconds",
        "gauge",
        WHO,
        "Expected seconds left after an emergency save of all runs; negative: too late.",
        expected_slack,
    ),
    Metric(
        "spotguard_fits_window",
        "gauge",
        WHO,
        "1 if an emergency save of all registered runs fits in the window, else 0.",
        fits_window,
    ),
    *METRICS_OF_HELPER,
)


def values(r: Scrape) -> list[Any]:
    """Return all numbers as plain JSON: lists of name, values of the labels, and number. Histograms are left out."""
    return [
        [metric.name, labels, value]
        for metric in METRICS
        for labels, value in metric.read(r)
        if not isinstance(value, Histogram)
    ]
