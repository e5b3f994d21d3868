"""The metrics recorder: it takes events in the loop's order, counts them, and keeps the newest `MetricsSnapshot` for scrapes.

Pure, and the loop alone writes; a scrape reads `newest`, which is one reference. Texts from peers become labels, so they are
bounded: known ones, or "other".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from ....hooks.ipc import protocol
from ....hooks.ipc.failure_classes import FAILURES
from ....providers.health import Health, Sight
from ....providers.notice import Notice, NoticeKind
from ....providers.text import NAME, clip
from ...core.failures.errors import FailureCause
from ...core.machine import Machine
from ...core.preemption import Preemption
from ...core.session import Session, number_in
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
from .snapshot import STAGES, ActiveNotice, MetricsSnapshot, Process, SourceState

if TYPE_CHECKING:
    from ...process.helpers.alert_helper import HelperState

#: The most distinct combinations of kind, source and severity. Two clouds have 30; only texts from other machines give more.
_PAIRS = 100
#: The most sources. The agent itself has eight at most; a service agent reports the others.
_SOURCES = 32
#: The most notices that are remembered as counted. A source with ever new notices must not fill the memory.
_KNOWN = 256
#: Seconds, and the number of steps seen, over which the duration of a step is taken: the longer of the two.
_STEPS_FOR, _STEPS = 60.0, 5


class MetricsRecorder:
    """The recorder. The loop owns it."""

    def __init__(self) -> None:
        self.newest = MetricsSnapshot()
        self._pending: Preemption | None = None
        self._known: dict[tuple[str, str], None] = {}
        #: The session numbers and stages of the current notice that are already recorded.
        self._passed: set[tuple[int, str]] = set()
        #: By session: when it was first seen at each of its last steps.
        self._steps: dict[int, deque[tuple[float, int]]] = {}
        #: By session: its step, and when an evaluation was first seen after it.
        self._evaluations: dict[int, tuple[int, float]] = {}
        self._crashes = self._launches = 0
        self._failure: FailureCause | None = None
        self._verified: Verified | None = None

    # --- inputs ---

    def take(self, event: Event | None, machine: Machine, now: float) -> None:
        """Record an event that the machine has handled."""
        if isinstance(event, NoticeSeen):
            self._notice(event.notice, event.unseen)
        elif isinstance(event, HealthChanged):
            self._sees(event.source, event.health, now)
        elif isinstance(event, SourceGone):
            self._sees(event.source, None, now)
        elif isinstance(event, WindowTold):
            self.newest = replace(self.newest, promised=event.seconds)
        elif isinstance(event, Heard):
            self._heard(event, machine, now)
        elif isinstance(event, Opened):
            self._process(event.session, machine.sessions.get(event.session))
        elif isinstance(event, Closed):
            self._process(event.session, None)
        self._stands(machine.preemption, now)
        if (cause := machine.failure) is not None and cause is not self._failure:
            self._failed(cause.kind)
        self._failure = machine.failure
        if (stalled := tuple(machine.stalls.standing)) != self.newest.stalled:
            self._stalled(stalled)
        if (silent := tuple(machine.stalls.silent)) != self.newest.silent:
            self.newest = replace(self.newest, silent=silent)
        if (verified := machine.verification.last) is not None and verified is not self._verified:
            counts = _one_more(self.newest.verifications, (verified.status,))
            self.newest = replace(self.newest, verifications=counts)
        self._verified = verified
        if machine.phase != self.newest.phase:
            self.newest = replace(self.newest, phase=machine.phase)

    def helped(self, state: HelperState) -> None:
        """Record the state of the helper of alerts."""
        if state is not self.newest.helper:
            self.newest = replace(self.newest, helper=state)

    def _failed(self, kind: str) -> None:
        key = (
            kind if kind in FAILURES else "program",
        )  # a newer hook may know classes that this agent does not
        self.newest = replace(self.newest, failures=_one_more(self.newest.failures, key))

    def _stalled(self, stalled: tuple[tuple[int, str], ...]) -> None:
        stalls = self.newest.stalls
        for _, run_id in set(stalled) - set(self.newest.stalled):
            if (run_id,) in stalls or len(stalls) < _PAIRS:
                stalls = _one_more(stalls, (run_id,))
        self.newest = replace(self.newest, stalled=stalled, stalls=stalls)

    def launched(self, crashes: int, failure: str = "") -> None:
        """Record a start of the command.

        Args:
            crashes: the crashes and stalls that the agent has counted so far.
            failure: the class of the failure behind which it starts.
        """
        if self._launches:
            crashed = "stall" if failure == "stall" else "crash"
            cause = crashed if crashes > self._crashes else "preemption"
            self.newest = replace(self.newest, restarts=_one_more(self.newest.restarts, (cause,)))
        self._launches, self._crashes = self._launches + 1, crashes

    def ended(self, record: Mapping[str, Any]) -> None:
        """Record the outcome of a notice. The record may be an earlier agent's."""
        if record.get("kind") in (NoticeKind.STALL, NoticeKind.RESTART):
            return  # no machine goes, and nothing is rehearsed: `spotguard_stalls_total` counts it
        drill, slack = _yes_no(record.get("drill")), record.get("slack")
        self.newest = replace(
            self.newest, outcomes=_one_more(self.newest.outcomes, (result_of(record), drill))
        )
        if isinstance(slack, int | float):
            one = self.newest.slack[(drill,)].observe(slack)
            self.newest = replace(self.newest, slack={**self.newest.slack, (drill,): one})

    # --- notices ---

    def _notice(self, notice: Notice, unseen: float | None = None) -> None:
        known = (notice.id, str(notice.severity))
        if known in self._known:
            return
        self._known[known] = None
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        severity = str(notice.severity)
        key = (str(notice.kind), clip(notice.source, NAME), severity)
        if key not in self.newest.notices and len(self.newest.notices) >= _PAIRS:
            key = (str(notice.kind), "other", severity)
        self.newest = replace(self.newest, notices=_one_more(self.newest.notices, key))
        if unseen is not None:
            one = self.newest.detection[(severity,)].observe(unseen)
            self.newest = replace(self.newest, detection={**self.newest.detection, (severity,): one})

    def _stands(self, p: Preemption | None, now: float) -> None:
        if p is None:
            self._pending = None
            if self.newest.standing is not None:
                self.newest = replace(self.newest, standing=None)
            return
        for notice in p.standing.values():  # no source shows drills, signals and other machines' calls
            self._notice(notice)
        deadline = None if p.stays else p.deadline
        standing = ActiveNotice(deadline, p.drill, frozenset(p.ids))
        if standing != self.newest.standing:
            self.newest = replace(self.newest, standing=standing)
        if p is not self._pending:
            self._pending, self._passed = p, set()
            if deadline is not None:
                self._reached("seen", deadline - now)

    def _reached(self, stage: str, left: float) -> None:
        standing = self.newest.standing
        key = (stage, _yes_no(standing is not None and standing.drill))
        one = self.newest.left[key].observe(left)
        self.newest = replace(self.newest, left={**self.newest.left, key: one})

    # --- sources ---

    def _sees(self, source: str, health: Health | None, now: float) -> None:
        source = clip(source, NAME)
        before = self.newest.sources.get(source)
        if before is None and len(self.newest.sources) >= _SOURCES:
            return
        if before is not None and before.reason:
            key, blind = (source, before.reason), self.newest.blind
            spent = blind.get(key, 0.0) + max(0.0, now - before.since)
            self.newest = replace(self.newest, blind={**blind, key: spent})
        others = {name: sight for name, sight in self.newest.sources.items() if name != source}
        if health is not None:
            others[source] = SourceState(_state(health), "" if health.seeing else health.reason, now)
        self.newest = replace(self.newest, sources=others)

    # --- training processes ---

    def _heard(self, event: Heard, machine: Machine, now: float) -> None:
        message, session = event.message, machine.sessions.get(event.session)
        if session is None:
            return
        if isinstance(message, protocol.TrainingFailed) and not machine.policy.command:
            self._failed(message.kind)  # a service sees no command fail
        if isinstance(message, protocol.Position):
            self._stepped(event.session, message.step, now)
            self._evaluates(event.session, message, now)
        if isinstance(message, protocol.Position | protocol.Committed):
            self._process(event.session, session)
        if isinstance(message, protocol.Committed) and message.step >= 0:
            key = ("emergency" if message.id else "background",)
            saved = self.newest.saved_bytes
            self.newest = replace(
                self.newest,
                checkpoints=_one_more(self.newest.checkpoints, key),
                saved_bytes={**saved, key: saved[key] + max(0, message.nbytes)},
            )
        if isinstance(message, protocol.Delivered | protocol.Progress | protocol.Committed):
            stage = message.phase if isinstance(message, protocol.Progress) else message.type
            self._passes(event.session, message.id, stage, now)

    def _passes(self, session: int, id: str, stage: str, now: float) -> None:
        """Record a stage against the notice as it stood before this message, because the last commit also ends the notice."""
        standing = self.newest.standing
        if standing is None or standing.deadline is None or id not in standing.ids or stage not in STAGES:
            return
        if (session, stage) not in self._passed:
            self._passed.add((session, stage))
            self._reached(stage, standing.deadline - now)

    def _stepped(self, number: int, step: int, now: float) -> None:
        seen = self._steps.setdefault(number, deque())
        if seen and step < seen[-1][1]:  # it went back to a checkpoint
            seen.clear()
        if step >= 0 and (not seen or step > seen[-1][1]):
            seen.append((now, step))
        while len(seen) > _STEPS and seen[1][0] < now - _STEPS_FOR:
            seen.popleft()

    def _evaluates(self, number: int, message: protocol.Position, now: float) -> None:
        """Note an evaluation. It waits for data and for other ranks, too, so it lasts until the next step is complete."""
        if (known := self._evaluations.get(number)) is not None and known[0] != message.step:
            del self._evaluations[number]
        if message.phase == "evaluation":
            self._evaluations.setdefault(number, (message.step, now))

    def _step_seconds(self, number: int) -> float | None:
        seen = self._steps.get(number, deque())
        if len(seen) < 3:  # the first span begins somewhere within a step
            return None
        # The middle one of its spans by steps: an evaluation between two steps is one long span, and no step's time.
        spans = sorted(((b - a) / (m - n), m - n) for (a, n), (b, m) in pairwise(list(seen)[1:]))
        middle = sum(steps for _, steps in spans) / 2
        passed = accumulate(steps for _, steps in spans)
        return next(span for (span, _), steps in zip(spans, passed, strict=True) if steps >= middle)

    def _process(self, number: int, session: Session | None) -> None:
        processes: Mapping[int, Process]
        if session is not None:  # the dict keeps the order: the first session is shown first
            _, evaluates_at = self._evaluations.get(number, (-1, None))
            one = replace(
                _process(session), step_seconds=self._step_seconds(number), evaluates_at=evaluates_at
            )
            processes = {**self.newest.processes, number: one}
        else:
            self._steps.pop(number, None)
            self._evaluations.pop(number, None)
            processes = {known: one for known, one in self.newest.processes.items() if known != number}
        self.newest = replace(self.newest, processes=processes)


def result_of(record: Mapping[str, Any]) -> str:
    """Return how a notice ended: one of `snapshot.RESULTS`."""
    if record.get("committed") is not None:
        return "committed" if record.get("level") == "full" else "reduced"
    if unneeded(str(record.get("ended"))):
        return "withdrawn"
    return "missed" if record.get("sessions") else "unguarded"


def _process(session: Session) -> Process:
    at = session.position or protocol.Position(-1)
    return Process(
        uid=session.uid,
        run_id=session.run_id,
        rank=session.rank,
        nbytes=session.nbytes,
        by_itself=not session.store,
        step=at.step,
        restored_at=session.heard_at - at.restored_age if at.restored_age >= 0 else None,
        checkpoint_step=at.checkpoint_step,
        checkpoint_at=session.heard_at - at.checkpoint_age,
        interval=at.interval or None,
        rate=at.rate or None,
        save_seconds=at.save_seconds if at.save_seconds >= 0 else None,
        earlier_step_seconds=at.earlier_step_seconds if at.earlier_step_seconds > 0 else None,
        # A process may send any word, and each would be a series of its own.
        phase=at.phase
        if at.phase in ("", "save", protocol.START, protocol.START_WAIT, *protocol.PHASES)
        else "other",
        moved_at=session.heard_at - at.still if at.phase and at.still >= 0 else None,
        loss=number_in(at.loss),
        bad_loss_steps=max(0, at.bad_loss_steps),
        metrics=session.metrics,
    )


def _state(health: Health) -> str:
    if health.reason == "starting":
        return "starting"
    return "wrong-server" if health.sight is Sight.WRONG_SERVER else str(health.sight)


def _yes_no(value: object) -> str:
    return "true" if value else "false"


def _one_more(counts: Mapping[tuple[str, ...], int], key: tuple[str, ...]) -> dict[tuple[str, ...], int]:
    return {**counts, key: counts.get(key, 0) + 1}
