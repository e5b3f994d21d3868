"""How many stories a random machine is asked for: the same ones each time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def asked(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
