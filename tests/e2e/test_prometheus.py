"""A real Prometheus scrapes a real agent: it understands every metric, and every chart of the dashboard has its numbers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

pytest.importorskip("prometheus_client")

from spotguard.agent.telemetry.metrics.definitions import METRICS
from spotguard.hooks.ipc.protocol import Committed, Delivered, Position, Preempt, Progress, Register, Welcome
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import eventually
from tests.e2e.promql import free_port, scraped, unanswered
from tests.fakes.hook import FakeHook
from tests.servers.prometheus import Prometheus

#: Soak: it waits for scrapes, rules and a cloud that comes back, for some nine seconds. tests/deploy/test_monitoring.py is the fast one.
pytestmark = [pytest.mark.wholepath, pytest.mark.soak]


def test_a_service_through_blindness_and_a_notice(
    machine: Machine, aws: AwsSimulator, require_server: Callable[[str], str]
) -> None:
    """The hook speaks the protocol by hand; the agent, its cloud, Prometheus and the rules are real."""
    socket = machine.runtime / "service.sock"
    aws.fault("500")
    with ExitStack() as stack:
        port = stack.enter_context(free_port())
        prometheus = stack.enter_context(Prometheus(require_server("prometheus"), {"node-1": port}))
        options = f"--provider aws --metadata-endpoint {aws.endpoint} --socket {socket} --metrics-port {port} --on-failure true"
        service = machine.spotguard("agent", *options.split())
        service.err.until("metrics at http://127.0.0.1:")
        hook = stack.enter_context(FakeHook(socket))
        hook.say(Register(os.getpid(), "job", "train.py", "file:///s", nbytes=1 << 20))
        hook.hear(Welcome)
        for step in (3, 4, 5):  # three of them tell what a step takes
            hook.say(
                Position(
                    step,
                    checkpoint_step=3,
                    checkpoint_age=4.0,
                    save_seconds=2.0,
                    rate=1e6,
                    interval=60.0,
                    phase="forward",
                    still=0.1,
                    loss="2.5",
                    earlier_step_seconds=0.1,
                    metrics={"validation_loss": "2.6"},
                )
            )
        failed = 'spotguard_source_poll_failures_total{reason="server-error",code="500"} > 0'
        eventually(lambda: prometheus.query(failed), "failed looks are recorded")
        eventually(
            lambda: prometheus.query('spotguard_source_state{state="blind"} == 1'), "blind is recorded"
        )
        aws.clear()
        eventually(
            lambda: not prometheus.query('spotguard_source_state{state="seeing"} == 0'), "it sees again"
        )
        aws.preempt(120)
        notice = hook.hear(Preempt).id
        now = time.monotonic()
        hook.say(
            Delivered(notice, now), Progress(notice, "gate", now, 6), Progress(notice, "first-byte", now, 6)
        )
        hook.say(Committed(notice, 6, 1 << 20, 0.1, "file:///s/6", now))
        committed = 'spotguard_outcomes_total{result="committed",drill="false"} == 1'
        eventually(lambda: prometheus.query(committed), "the outcome is recorded")
        eventually(lambda: not unanswered(prometheus), "every chart has its numbers")
        assert prometheus.query('ALERTS{alertstate="firing"}') == []
        understood = prometheus.metadata()
        for metric in METRICS:
            (said,) = understood[metric.name.removesuffix("_total")]  # as OpenMetrics has it
            assert (said["type"], said["help"]) == (metric.type, metric.help), metric.name
        checked = subprocess.run(
            [require_server("promtool"), "check", "metrics"],
            input=scraped(port),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
