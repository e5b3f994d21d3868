"""The table of an agent's metrics: for each one its name, type and meaning, and the function that reads it from a snapshot.

Pure: of Prometheus it uses only the conventions (base units, `_total`). A test compares docs/reference/metrics.md with this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from .reading import (
    WHO,
    Sample,
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
    reserve,
    seconds_left,
    single,
    states,
    which,
    window,
)
from .snapshot import PHASES


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    type: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str
    read: Callable[[Scrape], Iterable[Sample]]


METRICS: tuple[Metric, ...] = (
    # --- the agent ---
    Metric(
        "spotguard_agent_info",
        "gauge",
        ("version", "command", "run_id"),
        "Always 1. Which spotguard this is: run or agent, and of a run its name.",
        lambda r: [((r.facts.version, r.facts.command, r.facts.run_id), 1.0)],
    ),
    Metric(
        "spotguard_agent_phase",
        "gauge",
        ("phase",),
        "1 for what the agent does now: watching, saving, ending, outliving, waiting or rejoining; 0 for the others.",
        lambda r: which(PHASES, r.at.phase),
    ),
    Metric(
        "spotguard_sessions",
        "gauge",
        (),
        "Training processes that are registered here.",
        lambda r: single(len(r.at.processes)),
    ),
    Metric(
        "spotguard_restarts_total",
        "counter",
        ("cause",),
        "Starts of the command after its first one: after a crash, or after a preemption, of this machine, which outlived it, or of "
        "another one of the job.",
        lambda r: all_of(r.at.restarts),
    ),
    # --- sources ---
    Metric(
        "spotguard_source_state",
        "gauge",
        ("source", "state"),
        "1 for what a source of notices does now: seeing, starting (no answer yet), blind or wrong-server; 0 for the others.",
        states,
    ),
    Metric(
        "spotguard_blind_seconds_total",
        "counter",
        ("source", "reason"),
        "Seconds for which a source of notices did not see, by the reason.",
        blind_seconds,
    ),
    Metric(
        "spotguard_source_polls_total",
        "counter",
        ("source",),
        "Polls of a source of notices that came to an end.",
        ended_polls,
    ),
    Metric(
        "spotguard_source_poll_failures_total",
        "counter",
        ("source", "reason", "code"),
        "Polls of a source of notices that did not see, by the reason, and by the HTTP status where one was answered.",
        failed_polls,
    ),
    # --- notices ---
    Metric(
        "spotguard_notices_total",
        "counter",
        ("kind", "source", "severity"),
        "Notices, by kind, by who showed them, and by whether they end the machine (terminal), end it later, or warn (advisory).",
        lambda r: all_of(r.at.notices),
    ),
    Metric(
        "spotguard_notice_detection_seconds",
        "histogram",
        ("severity",),
        "For how long nobody had looked when the look began that showed a notice: it had stood no longer than that.",
        lambda r: all_of(r.at.detection),
    ),
    Metric(
        "spotguard_notice_left_seconds",
        "gauge",
        (),
        "Seconds until the deadline of the notice in hand. Absent without one, and where this machine stays.",
        lambda r: single(seconds_left(r)),
    ),
    Metric(
        "spotguard_stage_left_seconds",
        "histogram",
        ("stage", "drill"),
        "Seconds that were left of the warning at each stage: the notice seen; by each training process delivered, gate (its state "
        "stands still), first-byte, written and committed.",
        lambda r: all_of(r.at.left),
    ),
    Metric(
        "spotguard_outcomes_total",
        "counter",
        ("run_id", "result", "drill"),
        "How notices ended: committed, reduced (committed without the optimizer's moments, or a dead rank's extras), missed, unguarded (nobody was "
        "registered, as where a run is started again on a machine that goes) or withdrawn.",
        lambda r: named(r, r.at.outcomes),
    ),
    Metric(
        "spotguard_commit_slack_seconds",
        "histogram",
        ("run_id", "drill"),
        "Seconds that were left of the warning when the last training process had committed.",
        lambda r: named(r, r.at.slack),
    ),
    # --- checkpoints ---
    Metric(
        "spotguard_checkpoints_total",
        "counter",
        ("purpose",),
        "Checkpoints that training processes of this machine have committed, in the background or at a notice or drill.",
        lambda r: all_of(r.at.checkpoints),
    ),
    Metric(
        "spotguard_checkpoint_bytes_total",
        "counter",
        ("purpose",),
        "Bytes of these checkpoints.",
        lambda r: all_of(r.at.saved_bytes),
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
        "spotguard_checkpoint_step",
        "gauge",
        WHO,
        "Step of the newest committed checkpoint. Absent while there is none.",
        of_each(lambda one, r: one.checkpoint_step if one.checkpoint_step >= 0 else None),
    ),
    Metric(
        "spotguard_checkpoint_age_seconds",
        "gauge",
        WHO,
        "Seconds since the newest committed checkpoint, or since the process had restored where that is later: the work that a "
        "machine takes along that goes without a word. Absent until it has restored.",
        of_each(checkpoint_age),
    ),
    Metric(
        "spotguard_checkpoint_interval_seconds",
        "gauge",
        WHO,
        "Seconds between background checkpoints. Absent where they are switched off.",
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
        "What the process's link to the store gives, by its last saves. Absent until it has saved.",
        of_each(lambda one, r: one.rate),
    ),
    # --- whether a save fits into the window ---
    Metric(
        "spotguard_window_seconds",
        "gauge",
        (),
        "Seconds of warning to count on here: --window, or what the cloud says of this machine, or what it is known to give.",
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
        "What an emergency save would take of this process alone, by what the last saves have shown. Absent until then.",
        of_each(lambda one, r: one.save_seconds),
    ),
    Metric(
        "spotguard_expected_slack_seconds",
        "gauge",
        WHO,
        "Seconds that an emergency save would leave of the window less its reserve, where all runs that are registered here save "
        "at once over one link (their times add up); below 0 it does not fit. Absent until a save has shown it.",
        expected_slack,
    ),
    Metric(
        "spotguard_fits_window",
        "gauge",
        WHO,
        "1 where an emergency save of everything, of all runs that are registered here, fits into the window less its reserve, 0 "
        "where it does not. Absent until a save has shown it.",
        fits_window,
    ),
)
