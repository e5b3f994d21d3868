"""The table of an agent's metrics: for each one its name, type, labels and meaning, and the closed sets of label values.

Pure: of Prometheus it uses only the conventions (base units, `_total`). docs/reference/metrics.md shows this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ....providers.notice import Severity

#: Bounds in seconds of the time to detect a notice: one poll a second, long polls at once, and back-off while blind.
DETECTED = (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0)
#: Bounds in seconds of the time left of a warning: Azure often gives 10 s, AWS gives 120 s.
LEFT = (0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 45.0, 60.0, 90.0, 120.0)

#: The stages of a save, in order: those of `hooks.ipc.messages.Progress` between those of this agent.
STAGES = ("seen", "delivered", "gate", "first-byte", "written", "committed")
#: The ends of a notice. See `recorder.result_of`.
RESULTS = ("committed", "reduced", "missed", "unguarded", "withdrawn")
#: The values of `Machine.phase`.
PHASES = ("watching", "saving", "ending", "outliving", "waiting", "restarting")
STATES = ("seeing", "starting", "blind", "wrong-server")
SEVERITIES = tuple(str(severity) for severity in Severity)
PURPOSES = ("background", "emergency")
CAUSES = ("crash", "stall", "preemption")
#: The results of a verification. See `events.Verified`.
VERIFIED = ("sound", "damaged", "unknown")
#: The label values of a yes or no, in Prometheus's spelling.
YES_NO = ("false", "true")

#: The labels of the metrics of one training process.
WHO = "run_id rank uid"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    type: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str
    #: The bounds of a histogram.
    bounds: tuple[float, ...] = ()


def _gauge(name: str, help: str, labels: str = "") -> Metric:
    return Metric(name, "gauge", tuple(labels.split()), help)


def _counter(name: str, help: str, labels: str = "") -> Metric:
    return Metric(name, "counter", tuple(labels.split()), help)


def _histogram(name: str, help: str, labels: str, bounds: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", tuple(labels.split()), help, bounds)


METRICS: tuple[Metric, ...] = (
    # --- the agent ---
    _gauge(
        "spotguard_agent_info",
        "Always 1, with the command, the run and the version of this spotguard.",
        "version command run_id",
    ),
    _gauge(
        "spotguard_agent_phase",
        "1 for the present phase: watching, saving, ending, outliving, waiting or restarting; else 0.",
        "phase",
    ),
    _gauge("spotguard_sessions", "Registered training processes."),
    _counter("spotguard_restarts_total", "Starts of the command after its first one.", "cause"),
    _counter("spotguard_failures_total", "Failures of the command, by the class of the cause.", "class"),
    _gauge("spotguard_stalled", "1 while a run stands still for too long, else 0.", "run_id"),
    _counter("spotguard_stalls_total", "Times that a run stood still for too long.", "run_id"),
    _gauge(
        "spotguard_silent_machines",
        "Other machines of a run whose agents send no heartbeats any more.",
        "run_id",
    ),
    _gauge("spotguard_agent_seconds", "Seconds since this agent began."),
    # --- sources ---
    _gauge(
        "spotguard_source_state",
        "1 for the present health of a source: seeing, starting, blind or wrong-server; else 0.",
        "source state",
    ),
    _counter(
        "spotguard_blind_seconds_total",
        "Seconds for which a source could not see notices, by reason.",
        "source reason",
    ),
    _counter("spotguard_source_polls_total", "Finished polls of a source.", "source"),
    _counter(
        "spotguard_source_poll_failures_total",
        "Polls that could not see notices, by reason and HTTP status.",
        "source reason code",
    ),
    # --- notices ---
    _counter(
        "spotguard_notices_total",
        "Notices, by kind, source and severity: terminal, later or advisory.",
        "kind source severity",
    ),
    _histogram(
        "spotguard_notice_detection_seconds",
        "Longest time that a notice can have existed before the poll that found it.",
        "severity",
        DETECTED,
    ),
    _gauge(
        "spotguard_notice_left_seconds",
        "Seconds until the deadline of the active notice. Absent without one.",
    ),
    _histogram(
        "spotguard_stage_left_seconds",
        "Seconds left at a notice's stages: seen, delivered, gate, first-byte, written and committed.",
        "stage drill",
        LEFT,
    ),
    _counter(
        "spotguard_outcomes_total",
        "Ended notices: committed, reduced, missed, unguarded or withdrawn.",
        "run_id result drill",
    ),
    _histogram(
        "spotguard_commit_slack_seconds",
        "Seconds left when the last training process had committed.",
        "run_id drill",
        LEFT,
    ),
    # --- checkpoints ---
    _counter(
        "spotguard_checkpoints_total",
        "Checkpoints committed by training processes of this machine.",
        "purpose",
    ),
    _counter("spotguard_checkpoint_bytes_total", "Bytes of these checkpoints.", "purpose"),
    _counter(
        "spotguard_verifications_total",
        "Checkpoints that were read again: sound, damaged or unknown.",
        "result",
    ),
    # --- each training process ---
    _gauge("spotguard_step", "Completed steps. Absent until the process has restored.", WHO),
    _gauge(
        "spotguard_step_seconds",
        "Seconds that a step took, over the last minute. Absent until it is known.",
        WHO,
    ),
    _gauge(
        "spotguard_earlier_step_seconds",
        "A step's median seconds in the attempt before, if that had as many ranks.",
        WHO,
    ),
    _gauge("spotguard_checkpoint_step", "Step of the newest committed checkpoint. Absent without one.", WHO),
    _gauge(
        "spotguard_checkpoint_age_seconds",
        "Seconds since the newest checkpoint or the restore, without a running evaluation: work at risk.",
        WHO,
    ),
    _gauge(
        "spotguard_checkpoint_interval_seconds",
        "Seconds between background checkpoints. Absent if they are off.",
        WHO,
    ),
    _gauge("spotguard_state_bytes", "Bytes of the process's state.", WHO),
    _gauge(
        "spotguard_upload_bytes_per_second",
        "Upload rate of the last saves. Absent before the first save.",
        WHO,
    ),
    _gauge(
        "spotguard_phase",
        "1 for the present phase of training, such as data, forward or save.",
        f"{WHO} phase",
    ),
    _gauge(
        "spotguard_progress_age_seconds",
        "Seconds since training has last shown progress. Absent if the process does not train.",
        WHO,
    ),
    _gauge("spotguard_loss", "The newest loss. Absent if the script passes none to the guard.", WHO),
    _counter(
        "spotguard_bad_loss_steps_total",
        "Steps whose losses are not finite, or spikes of ten steps; 0 without losses.",
        WHO,
    ),
    _gauge(
        "spotguard_metric",
        "The newest value of a number of the script's own (`guard.watch_metric`), such as validation_loss.",
        f"{WHO} name",
    ),
    # --- whether a save fits into the window ---
    _gauge("spotguard_window_seconds", "Seconds of warning to count on."),
    _gauge("spotguard_reserve_seconds", "Seconds of the window that are kept back to end in order."),
    _gauge(
        "spotguard_expected_save_seconds", "Expected seconds of an emergency save of this process alone.", WHO
    ),
    _gauge(
        "spotguard_expected_slack_seconds",
        "Expected seconds left after an emergency save of all runs; negative: too late.",
        WHO,
    ),
    _gauge(
        "spotguard_fits_window",
        "1 if an emergency save of all registered runs fits in the window, else 0.",
        WHO,
    ),
    # --- the helper of alerts: itself, and what it reads of the machine ---
    _gauge("spotguard_helper_up", "1 while the helper of alerts runs, 0 after its end. Absent without one."),
    _counter("spotguard_helper_starts_total", "Starts of the helper of alerts."),
    _counter("spotguard_helper_dropped_total", "Events that the helper did not read in time."),
    _gauge("spotguard_alerts_firing", "Incidents that last, by name and severity.", "alert severity"),
    _counter(
        "spotguard_alert_messages_total",
        "Messages to receivers of incidents: sent, failed or dropped.",
        "receiver result",
    ),
    _gauge(
        "spotguard_disk_free_ratio",
        "Free share of a disk: of the store, the stage, the working or temporary directory.",
        "place",
    ),
    _counter(
        "spotguard_disk_read_bytes_total",
        "Bytes that the job's cgroup has read from this disk; else all that were read.",
        "place",
    ),
    _counter(
        "spotguard_disk_write_bytes_total",
        "Bytes that the job's cgroup has written to this disk; else all that were written.",
        "place",
    ),
    _gauge(
        "spotguard_memory_used_ratio",
        "Used share of the cgroup's memory, or of the machine's without a limit.",
    ),
    _gauge(
        "spotguard_pressure_ratio",
        "Share of the last minute in which tasks waited for memory, cpu or io.",
        "resource",
    ),
    _gauge(
        "spotguard_cpu_throttled_ratio", "Share of the last minute's periods in which the CPU quota ran out."
    ),
    _counter(
        "spotguard_clock_step_seconds_total",
        "Seconds by which the wall clock was set, forward or back.",
        "direction",
    ),
    _counter(
        "spotguard_kernel_errors_total",
        "Lines of the kernel log about xid, oom, disk or machine-check.",
        "kind",
    ),
    _gauge("spotguard_gpu_up", "1 while NVML answers for the GPU, 0 after it was lost.", "gpu"),
    _gauge(
        "spotguard_gpu_throttled",
        "1 while the GPU is slowed down for heat, power or hardware, else 0.",
        "gpu reason",
    ),
    _counter("spotguard_gpu_ecc_errors_total", "Memory errors of the GPU that ECC could not correct.", "gpu"),
    _gauge("spotguard_gpu_temperature_celsius", "Temperature of the GPU.", "gpu"),
    _gauge("spotguard_gpu_memory_used_ratio", "Used share of the GPU's memory.", "gpu"),
)
