"""The metrics of the training processes: what each one reports, as it ages, and whether the saves of all fit into the window."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from ....hooks.ipc import protocol
from ...core.budget import reserve_of
from ...core.session import Session, number_in
from .series import Key, MetricObjects, Number

#: The most training processes that are shown, the first ones. A machine has eight devices; the rest is spare. All are counted.
SHOWN = 128
#: Seconds, and the number of steps seen, over which the duration of a step is taken: the longer of the two.
_STEPS_FOR, _STEPS = 60.0, 5


@dataclass(frozen=True, slots=True)
class ExpectedWindow:
    """The seconds of warning to count on, as `doctor` does."""

    #: Those of `--window`, else the warning that the cloud usually gives.
    seconds: float
    #: Whether `--window` set them. Then the cloud's own number does not count.
    given: bool
    #: `--reserve` in seconds; None: in proportion to the window.
    reserve: float | None


class ProcessMetrics:
    """The metrics of all training processes. The loop's thread calls everything here.

    Args:
        series: the series to set.
        monotonic: returns monotonic seconds. A scrape calls it, too.
        window: the seconds of warning to count on.
    """

    def __init__(self, series: MetricObjects, monotonic: Callable[[], float], window: ExpectedWindow) -> None:
        self._series = series
        self._monotonic = monotonic
        self._window = window
        #: The runs of the processes that have checkpoints of spotguard's.
        self.runs: frozenset[str] = frozenset()
        self._sessions: dict[int, Session] = {}
        #: The session that is shown under these values of `WHO`.
        self._shown: dict[tuple[str, ...], int] = {}
        #: By session: when it was first seen at each of its last steps.
        self._steps: dict[int, deque[tuple[float, int]]] = {}
        #: By session: its step, and when an evaluation was first seen after it.
        self._evaluations: dict[int, tuple[int, float]] = {}
        self._saves: object = None
        self._arrange()
        self._expect(window.seconds)

    # --- inputs ---

    def promised(self, seconds: float) -> None:
        """Take in the cloud's own number for this machine."""
        if not self._window.given:
            self._expect(seconds)

    def stands(self, number: int, position: protocol.Position, now: float) -> None:
        """Take in a position, before `changed`."""
        self._stepped(number, position.step, now)
        self._evaluates(number, position, now)

    def changed(self, number: int, session: Session | None) -> None:
        """Show a process as it stands now; with None, it is gone."""
        known = number in self._sessions
        if session is not None:
            self._sessions[number] = session
        else:
            for each in (self._sessions, self._steps, self._evaluations):
                each.pop(number, None)
        if session is None or not known:
            self._arrange()
        elif self._shown.get(who := _who(session)) == number:
            self._show(who, session)
        self._show_slack()

    # --- what is shown ---

    def _arrange(self) -> None:
        """Choose the processes to show, one for each set of labels: of a script that runs twice, the newer one."""
        ours = {_who(one): number for number, one in self._sessions.items() if one.store}
        before, self._shown = self._shown, dict(islice(ours.items(), SHOWN))
        for who in before.keys() - self._shown.keys():
            self._series.replace(who, {})
        for who, number in self._shown.items():
            if before.get(who) != number:
                self._show(who, self._sessions[number])
        self.runs = frozenset(one.run_id for one in self._sessions.values() if one.store)
        sessions: Key = ("spotguard_sessions", ())
        self._series.replace("sessions", {sessions: len(self._sessions)})

    def _show(self, who: tuple[str, ...], session: Session) -> None:
        """Show what the process knows. An unknown value gives no series, because a reader would trust a guessed number."""
        at = session.position or protocol.Position(-1)
        moved = session.heard_at - at.still if at.phase and at.still >= 0 else None
        known: dict[str, Number | None] = {
            "spotguard_step": at.step if at.step >= 0 else None,
            "spotguard_step_seconds": self._step_seconds(session.number),
            "spotguard_earlier_step_seconds": at.earlier_step_seconds
            if at.earlier_step_seconds > 0
            else None,
            "spotguard_checkpoint_step": at.checkpoint_step if at.checkpoint_step >= 0 else None,
            "spotguard_checkpoint_age_seconds": self._checkpoint_age(session, at),
            "spotguard_checkpoint_interval_seconds": at.interval or None,
            "spotguard_state_bytes": session.nbytes or None,
            "spotguard_upload_bytes_per_second": at.rate or None,
            "spotguard_progress_age_seconds": None if moved is None else self._age(moved),
            "spotguard_loss": number_in(at.loss),
            "spotguard_bad_loss_steps_total": max(0, at.bad_loss_steps),
            "spotguard_expected_save_seconds": _save_seconds(session),
        }
        numbers = {(name, who): number for name, number in known.items() if number is not None}
        if at.phase:
            # A process may send any word, and each would be a series of its own.
            words = ("save", protocol.START, protocol.START_WAIT, *protocol.PHASES)
            phase = at.phase if at.phase in words else "other"
            numbers["spotguard_phase", (*who, phase)] = 1.0
        for name, value in session.metrics.items():
            numbers["spotguard_metric", (*who, name)] = value
        self._series.replace(who, numbers)

    def _age(self, since: float, until: float | None = None) -> Callable[[], float]:
        """Return a function for scrapes that returns the seconds since an instant."""
        return lambda: max(0.0, (self._monotonic() if until is None else until) - since)

    def _checkpoint_age(self, session: Session, at: protocol.Position) -> Number | None:
        """Return the seconds of work that a loss of the process would cost; None if unknown.

        Work from before the process restored cannot be lost, even if the restored checkpoint is old. An evaluation makes no step, and
        no checkpoint comes in it, so the work stays what it was at its begin.
        """
        ages = [
            age
            for age, known in (
                (at.checkpoint_age, at.checkpoint_step >= 0),
                (at.restored_age, at.restored_age >= 0),
            )
            if known
        ]
        if at.step < 0 or not ages:
            return None
        _, evaluates_at = self._evaluations.get(session.number, (-1, None))
        return self._age(session.heard_at - min(ages), evaluates_at)

    def _expect(self, seconds: float) -> None:
        reserve = reserve_of(seconds, self._window.reserve)
        self._left = seconds - reserve
        numbers: dict[Key, Number] = {
            ("spotguard_window_seconds", ()): seconds,
            ("spotguard_reserve_seconds", ()): reserve,
        }
        self._series.replace("window", numbers)
        self._show_slack()

    def _show_slack(self) -> None:
        """Show for each process the seconds that this machine's emergency saves leave of the window.

        At a notice all runs of the machine save at once over one link. Each run has measured the link's rate alone, so their
        times add up. The ranks of one run have measured it together.
        """
        runs: dict[tuple[int, str], float] = {}
        for one in self._sessions.values():
            if (seconds := _save_seconds(one)) is not None:
                runs[one.run] = max(runs.get(one.run, 0.0), seconds)
        measured = [
            who for who, number in self._shown.items() if _save_seconds(self._sessions[number]) is not None
        ]
        slack = self._left - sum(runs.values())
        if (slack, measured) == self._saves:
            return
        self._saves = slack, measured
        numbers: dict[Key, Number] = {("spotguard_expected_slack_seconds", who): slack for who in measured}
        numbers |= {("spotguard_fits_window", who): float(slack >= 0) for who in measured}
        self._series.replace("slack", numbers)

    # --- steps and evaluations ---

    def _stepped(self, number: int, step: int, now: float) -> None:
        seen = self._steps.setdefault(number, deque())
        if seen and step < seen[-1][1]:  # it went back to a checkpoint
            seen.clear()
        if step >= 0 and (not seen or step > seen[-1][1]):
            seen.append((now, step))
        while len(seen) > _STEPS and seen[1][0] < now - _STEPS_FOR:
            seen.popleft()

    def _evaluates(self, number: int, position: protocol.Position, now: float) -> None:
        """Note an evaluation. It waits for data and for other ranks, too, so it lasts until the next step is complete."""
        if (known := self._evaluations.get(number)) is not None and known[0] != position.step:
            del self._evaluations[number]
        if position.phase == "evaluation":
            self._evaluations.setdefault(number, (position.step, now))

    def _step_seconds(self, number: int) -> float | None:
        seen = self._steps.get(number, deque())
        if len(seen) < 3:  # the first span begins somewhere within a step
            return None
        # The middle one of its spans by steps: an evaluation between two steps is one long span, and no step's time.
        spans = sorted(((b - a) / (m - n), m - n) for (a, n), (b, m) in pairwise(list(seen)[1:]))
        middle = sum(steps for _, steps in spans) / 2
        passed = accumulate(steps for _, steps in spans)
        return next(span for (span, _), steps in zip(spans, passed, strict=True) if steps >= middle)


def _who(session: Session) -> tuple[str, ...]:
    return session.run_id, str(session.rank), str(session.uid)


def _save_seconds(session: Session) -> float | None:
    at = session.position
    return at.save_seconds if at is not None and at.save_seconds >= 0 else None
