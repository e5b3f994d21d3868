"""The metrics recorder: it takes events in the loop's order, and counts them in Prometheus's own objects.

The loop alone calls it, except `polled`. Texts from peers become labels, so they are bounded: known ones, or "other".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from ....hooks.ipc import protocol
from ....hooks.ipc.failure_classes import FAILURES
from ....providers.health import Health, Sight
from ....providers.notice import Notice, NoticeKind
from ....providers.text import NAME, clip
from ...core.failures.errors import FailureCause
from ...core.machine import Machine
from ...core.preemption import Preemption
from ...events import (
    Closed,
    Event,
    HealthChanged,
    Heard,
    NoticeSeen,
    Opened,
    SourceGone,
    Verified,
    WindowTold,
)
from ...outcome import unneeded
from .definitions import (
    CAUSES,
    METRICS,
    PHASES,
    PURPOSES,
    RESULTS,
    SEVERITIES,
    STAGES,
    STATES,
    VERIFIED,
    YES_NO,
)
from .processes import ExpectedWindow, ProcessMetrics
from .series import Key, MetricObjects, Number

if TYPE_CHECKING:
    from ...process.helpers.alert_helper import HelperState

#: The most distinct combinations of kind, source and severity. Two clouds have 30; only texts from other machines give more.
_PAIRS = 100
#: The most sources. The agent itself has eight at most; a service agent reports the others.
_SOURCES = 32
#: The most notices that are remembered as counted. A source with ever new notices must not fill the memory.
_KNOWN = 256
#: The number of labels of each metric.
_LABELS = {metric.name: len(metric.labels) for metric in METRICS}


@dataclass(frozen=True, slots=True)
class MetricsFacts:
    """The facts that do not change while the agent runs."""

    version: str
    #: "run" or "agent".
    command: str
    run_id: str
    window: ExpectedWindow


class MetricsRecorder:
    """The recorder.

    Args:
        registry: gets the metrics.
        facts: what does not change.
        monotonic: returns monotonic seconds. A scrape calls it, too.
    """

    def __init__(
        self, registry: CollectorRegistry, facts: MetricsFacts, monotonic: Callable[[], float]
    ) -> None:
        self._series = series = MetricObjects(registry)
        self._monotonic = monotonic
        self._run_id = facts.run_id
        self._processes = ProcessMetrics(series, monotonic, facts.window)
        self._standing: Preemption | None = None
        #: Monotonic seconds; None if there is no notice, or if this machine stays.
        self._deadline: float | None = None
        #: Every id that an answer to the notice may carry.
        self._ids: frozenset[str] = frozenset()
        self._drill = "false"
        #: The session numbers and stages of the current notice that are already recorded.
        self._passed: set[tuple[int, str]] = set()
        #: The notices that are already counted, and the labels of those counts.
        self._known: dict[tuple[str, str], None] = {}
        self._pairs: set[tuple[str, str, str]] = set()
        #: By source, its reason of blindness; "" if it sees.
        self._sources: dict[str, str] = {}
        #: Monotonic seconds until which blindness is counted.
        self._counted = began = monotonic()
        #: The user and the run of those that stand still now, and the stalls so far by run.
        self._stalled: frozenset[tuple[int, str]] = frozenset()
        self._stalls: dict[str, int] = {}
        #: What the series of the runs were made from.
        self._state: tuple[object, ...] = ()
        self._crashes = self._launches = 0
        self._failure: FailureCause | None = None
        self._verified: Verified | None = None
        self._helper: HelperState | None = None
        numbers: dict[Key, Number] = {
            ("spotguard_agent_info", (facts.version, facts.command, facts.run_id)): 1.0,
            ("spotguard_agent_seconds", ()): lambda: monotonic() - began,
        }
        series.replace("agent", numbers)
        self._phase(PHASES[0])
        run = (facts.run_id,)
        for name, *labels in (
            ("spotguard_outcomes_total", run, RESULTS, YES_NO),
            ("spotguard_commit_slack_seconds", run, YES_NO),
            ("spotguard_stage_left_seconds", STAGES, YES_NO),
            ("spotguard_notice_detection_seconds", SEVERITIES),
            ("spotguard_checkpoints_total", PURPOSES),
            ("spotguard_checkpoint_bytes_total", PURPOSES),
            ("spotguard_restarts_total", CAUSES),
            ("spotguard_failures_total", tuple(FAILURES)),
            ("spotguard_verifications_total", VERIFIED),
        ):
            for values in product(*labels):
                series.begin(name, *values)

    # --- inputs ---

    def take(self, event: Event | None, machine: Machine, now: float) -> None:
        """Record an event that the machine has handled. The loop also calls it every few seconds without one."""
        self._count_blindness(now)
        if isinstance(event, NoticeSeen):
            self._notice(event.notice, event.unseen)
        elif isinstance(event, HealthChanged):
            self._sees(event.source, event.health)
        elif isinstance(event, SourceGone):
            self._sees(event.source, None)
        elif isinstance(event, WindowTold):
            self._processes.promised(event.seconds)
        elif isinstance(event, Heard):
            self._heard(event, machine, now)
        elif isinstance(event, Opened):
            self._processes.changed(event.session, machine.sessions.get(event.session))
        elif isinstance(event, Closed):
            self._processes.changed(event.session, None)
        self._stands(machine.preemption, now)
        if (cause := machine.failure) is not None and cause is not self._failure:
            self._failed(cause.kind)
        self._failure = machine.failure
        self._runs(machine)
        if (verified := machine.verification.last) is not None and verified is not self._verified:
            self._series.count("spotguard_verifications_total", verified.status)
        self._verified = verified
        self._phase(machine.phase)

    def polled(self, source: str, health: Health) -> None:
        """Count a poll that ended. The thread that polls calls it."""
        self._series.count("spotguard_source_polls_total", source)
        if not health.seeing:
            code = str(health.code) if health.code else ""
            self._series.count("spotguard_source_poll_failures_total", source, health.reason, code)

    def helped(self, state: HelperState) -> None:
        """Record the state of the helper of alerts, and what it reports."""
        if state is self._helper:
            return
        self._helper = state
        report = state.report or {}
        numbers: dict[Key, Number] = {
            ("spotguard_helper_up", ()): state.pid > 0,
            ("spotguard_helper_starts_total", ()): state.starts,
            ("spotguard_helper_dropped_total", ()): state.dropped,
        }
        firing = Counter((alert["alert"], alert["severity"]) for alert in report.get("firing", ()))
        numbers |= {("spotguard_alerts_firing", alert): count for alert, count in firing.items()}
        for name, labels, value in report.get("readings", ()):
            if _LABELS.get(name) == len(labels):
                numbers[name, tuple(labels)] = float(value)
        self._series.replace("helper", numbers)

    def launched(self, crashes: int, failure: str = "") -> None:
        """Record a start of the command.

        Args:
            crashes: the crashes and stalls that the agent has counted so far.
            failure: the class of the failure behind which it starts.
        """
        if self._launches:
            crashed = "stall" if failure == "stall" else "crash"
            cause = crashed if crashes > self._crashes else "preemption"
            self._series.count("spotguard_restarts_total", cause)
        self._launches, self._crashes = self._launches + 1, crashes

    def ended(self, record: Mapping[str, Any]) -> None:
        """Record the outcome of a notice. The record may be an earlier agent's."""
        if record.get("kind") in (NoticeKind.STALL, NoticeKind.RESTART):
            return  # no machine goes, and nothing is rehearsed: `spotguard_stalls_total` counts it
        drill, slack = _yes_no(record.get("drill")), record.get("slack")
        self._series.count("spotguard_outcomes_total", self._run_id, result_of(record), drill)
        if isinstance(slack, int | float):
            self._series.observe("spotguard_commit_slack_seconds", self._run_id, drill, value=slack)

    # --- the agent ---

    def _phase(self, phase: str) -> None:
        self._series.replace("phase", {("spotguard_agent_phase", (one,)): one == phase for one in PHASES})

    def _failed(self, kind: str) -> None:
        # Any process may write to the socket.
        self._series.count("spotguard_failures_total", kind if kind in FAILURES else "program")

    def _runs(self, machine: Machine) -> None:
        """Show which runs stand still, and how many machines of each are silent."""
        stalled, silences = frozenset(machine.stalls.standing), tuple(machine.stalls.silent)
        if (state := (stalled, silences, self._processes.runs)) == self._state:
            return  # there may be hundreds of runs, and events of each
        self._state = state
        for _, run_id in stalled - self._stalled:
            if run_id in self._stalls or len(self._stalls) < _PAIRS:
                self._stalls[run_id] = self._stalls.get(run_id, 0) + 1
        self._stalled = stalled
        runs, still = self._processes.runs, {run_id for _, run_id in stalled}
        silent = Counter(run_id for run_id, _ in silences)
        numbers: dict[Key, Number] = {("spotguard_stalled", (run,)): run in still for run in runs | still}
        numbers |= {("spotguard_silent_machines", (run,)): silent[run] for run in runs | silent.keys()}
        # 0 included: Prometheus sees no rise in a counter that begins with 1.
        for run in runs | self._stalls.keys():
            numbers["spotguard_stalls_total", (run,)] = self._stalls.get(run, 0)
        self._series.replace("runs", numbers)

    # --- notices ---

    def _notice(self, notice: Notice, unseen: float | None = None) -> None:
        severity = str(notice.severity)
        known = (notice.id, severity)
        if known in self._known:
            return
        self._known[known] = None
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        pair = (str(notice.kind), clip(notice.source, NAME), severity)
        if pair not in self._pairs and len(self._pairs) >= _PAIRS:
            pair = (str(notice.kind), "other", severity)
        self._pairs.add(pair)
        self._series.count("spotguard_notices_total", *pair)
        if unseen is not None:
            self._series.observe("spotguard_notice_detection_seconds", severity, value=unseen)

    def _stands(self, p: Preemption | None, now: float) -> None:
        deadline, before = None if p is None or p.stays else p.deadline, self._deadline
        if deadline != before:
            self._deadline = deadline
            left: dict[Key, Number] = {}
            if deadline is not None:
                left["spotguard_notice_left_seconds", ()] = lambda: deadline - self._monotonic()
            self._series.replace("notice", left)
        if p is not None:
            for notice in p.standing.values():  # no source shows drills, signals and other machines' calls
                self._notice(notice)
            self._ids, self._drill = frozenset(p.ids), _yes_no(p.drill)
            if p is not self._standing:
                self._passed.clear()
                if deadline is not None:
                    self._reached("seen", deadline - now)
        self._standing = p

    def _passes(self, session: int, id: str, stage: str, now: float) -> None:
        """Record a stage against the notice as it stood before this message, because the last commit also ends the notice."""
        if self._deadline is None or id not in self._ids or stage not in STAGES:
            return
        if (session, stage) not in self._passed:
            self._passed.add((session, stage))
            self._reached(stage, self._deadline - now)

    def _reached(self, stage: str, left: float) -> None:
        self._series.observe("spotguard_stage_left_seconds", stage, self._drill, value=left)

    # --- sources ---

    def _sees(self, source: str, health: Health | None) -> None:
        source = clip(source, NAME)
        if source not in self._sources and len(self._sources) >= _SOURCES:
            return
        if health is None:
            self._sources.pop(source, None)
            self._series.replace(("source", source), {})
            return
        self._sources[source] = "" if health.seeing else health.reason
        if self._sources[source]:
            self._series.begin("spotguard_blind_seconds_total", source, self._sources[source])
        state = _state(health)
        states: dict[Key, Number] = {
            ("spotguard_source_state", (source, one)): one == state for one in STATES
        }
        self._series.replace(("source", source), states)

    def _count_blindness(self, now: float) -> None:
        for source, reason in self._sources.items():
            if reason:
                by = max(0.0, now - self._counted)
                self._series.count("spotguard_blind_seconds_total", source, reason, by=by)
        self._counted = now

    # --- training processes ---

    def _heard(self, event: Heard, machine: Machine, now: float) -> None:
        message, session = event.message, machine.sessions.get(event.session)
        if session is None:
            return
        if isinstance(message, protocol.TrainingFailed) and not machine.policy.command:
            self._failed(message.kind)  # a service sees no command fail
        if isinstance(message, protocol.Position):
            self._processes.stands(event.session, message, now)
        if isinstance(message, protocol.Position | protocol.Committed):
            self._processes.changed(event.session, session)
        if isinstance(message, protocol.Committed) and message.step >= 0:
            purpose = "emergency" if message.id else "background"
            self._series.count("spotguard_checkpoints_total", purpose)
            self._series.count("spotguard_checkpoint_bytes_total", purpose, by=max(0, message.nbytes))
        if isinstance(message, protocol.Delivered | protocol.Progress | protocol.Committed):
            stage = message.phase if isinstance(message, protocol.Progress) else message.type
            self._passes(event.session, message.id, stage, now)


def result_of(record: Mapping[str, Any]) -> str:
    """Return how a notice ended: one of `definitions.RESULTS`."""
    if record.get("committed") is not None:
        return "committed" if record.get("level") == "full" else "reduced"
    if unneeded(str(record.get("ended"))):
        return "withdrawn"
    return "missed" if record.get("sessions") else "unguarded"


def _state(health: Health) -> str:
    if health.reason == "starting":
        return "starting"
    return "wrong-server" if health.sight is Sight.WRONG_SERVER else str(health.sight)


def _yes_no(value: object) -> str:
    return "true" if value else "false"
