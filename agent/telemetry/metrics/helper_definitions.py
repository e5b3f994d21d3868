"""The part of the table that the helper of alerts fills: itself, and what it reads of the machine."""

from __future__ import annotations

from .scrape import Metric, firing, of_helper, reported

METRICS_OF_HELPER: tuple[Metric, ...] = (
    Metric(
        "spotguard_helper_up",
        "gauge",
        (),
        "1 while the helper of alerts runs, 0 after its end. Absent without one.",
        of_helper(lambda helper: helper.pid > 0),
    ),
    Metric(
        "spotguard_helper_starts_total",
        "counter",
        (),
        "Starts of the helper of alerts.",
        of_helper(lambda helper: helper.starts),
    ),
    Metric(
        "spotguard_helper_dropped_total",
        "counter",
        (),
        "Incidents and samples that the helper did not read in time.",
        of_helper(lambda helper: helper.dropped),
    ),
    Metric(
        "spotguard_alerts_firing",
        "gauge",
        ("alert", "severity"),
        "Firing alerts of the helper's rules.",
        firing,
    ),
    Metric(
        "spotguard_alert_messages_total",
        "counter",
        ("receiver", "result"),
        "Messages to receivers of alerts: sent, failed or dropped.",
        reported("spotguard_alert_messages_total"),
    ),
    Metric(
        "spotguard_disk_free_ratio",
        "gauge",
        ("place",),
        "Free share of a disk: of the store, the stage, the working or temporary directory.",
        reported("spotguard_disk_free_ratio"),
    ),
    Metric(
        "spotguard_disk_read_bytes_total",
        "counter",
        ("place",),
        "Bytes that the job's cgroup has read from this disk; else all that were read.",
        reported("spotguard_disk_read_bytes_total"),
    ),
    Metric(
        "spotguard_disk_write_bytes_total",
        "counter",
        ("place",),
        "Bytes that the job's cgroup has written to this disk; else all that were written.",
        reported("spotguard_disk_write_bytes_total"),
    ),
    Metric(
        "spotguard_memory_used_ratio",
        "gauge",
        (),
        "Used share of the cgroup's memory, or of the machine's without a limit.",
        reported("spotguard_memory_used_ratio"),
    ),
    Metric(
        "spotguard_pressure_ratio",
        "gauge",
        ("resource",),
        "Share of the last minute in which tasks waited for memory, cpu or io.",
        reported("spotguard_pressure_ratio"),
    ),
    Metric(
        "spotguard_cpu_throttled_ratio",
        "gauge",
        (),
        "Share of the last minute's periods in which the CPU quota ran out.",
        reported("spotguard_cpu_throttled_ratio"),
    ),
    Metric(
        "spotguard_clock_step_seconds_total",
        "counter",
        ("direction",),
        "Seconds by which the wall clock was set, forward or back.",
        reported("spotguard_clock_step_seconds_total"),
    ),
    Metric(
        "spotguard_kernel_errors_total",
        "counter",
        ("kind",),
        "Lines of the kernel log about xid, oom, disk or machine-check.",
        reported("spotguard_kernel_errors_total"),
    ),
    Metric(
        "spotguard_gpu_up",
        "gauge",
        ("gpu",),
        "1 while NVML answers for the GPU, 0 after it was lost.",
        reported("spotguard_gpu_up"),
    ),
    Metric(
        "spotguard_gpu_throttled",
        "gauge",
        ("gpu", "reason"),
        "1 while the GPU is slowed down for heat, power or hardware, else 0.",
        reported("spotguard_gpu_throttled"),
    ),
    Metric(
        "spotguard_gpu_ecc_errors_total",
        "counter",
        ("gpu",),
        "Memory errors of the GPU that ECC could not correct.",
        reported("spotguard_gpu_ecc_errors_total"),
    ),
    Metric(
        "spotguard_gpu_temperature_celsius",
        "gauge",
        ("gpu",),
        "Temperature of the GPU.",
        reported("spotguard_gpu_temperature_celsius"),
    ),
    Metric(
        "spotguard_gpu_memory_used_ratio",
        "gauge",
        ("gpu",),
        "Used share of the GPU's memory.",
        reported("spotguard_gpu_memory_used_ratio"),
    ),
)
