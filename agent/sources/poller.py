"""The poller: one thread for each source of notices, which polls for ever at the source's interval, never silent (law 4).

A failed poll never ends the poller: an agent that dies of a bad answer is blind for good
(aws-node-termination-handler#916).
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from ...providers.clock import Clock
from ...providers.health import STARTING, Health, blind
from ...providers.notice import JITTER, Acknowledging, Notice, NoticeSource, Promising, Severity, Sighting
from ..core.notices import NEAR
from ..events import Event, HealthChanged, NoticeGone, NoticeSeen, WindowTold
from .health_log import CommonHealth, HealthLog

logger = logging.getLogger("spotguard.agent")

#: Seconds. A window may be 10 s (Azure), and a longer wait between polls would use up too much of it.
LONGEST_WAIT = 2.0
#: Seconds at the end for an acknowledgement that the source still has to send to its cloud.
LAST_WORD = 2.0
#: Seconds. If a far deadline moves later by more than this, it is a new notice, and not a corrected clock.
_PUT_OFF = 60.0


class Poller:
    """The owner of one source: no other thread polls the source."""

    def __init__(
        self,
        source: NoticeSource,
        post: Callable[[Event], None],
        clock: Clock,
        rng: random.Random,
        common_health: CommonHealth | None = None,
        count: Callable[[str, Health], None] | None = None,
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            source: the source to poll.
            post: takes the events.
            clock: the clock of the polls.
            rng: spreads the waits after a failure.
            common_health: the health that this source shares with the other sources of the same service.
            count: called with the source's name and the health that a poll found, at the end of each; for metrics.
        """
        self._source = source
        self._post = post
        self._clock = clock
        self._rng = rng
        self._stop = threading.Event()
        #: Held while a result is reported, never during a poll: a poll may hang for ever.
        self._lock = threading.Lock()
        self._looks = PollDeadline(source.longest, clock.monotonic())
        self._thread = threading.Thread(target=self._run, name=f"spotguard-watch-{source.name}", daemon=True)
        self._health: Health | None = None
        self._mention = HealthLog()
        self._common_health = common_health
        self._count = count
        #: Monotonic seconds at which the last poll that saw ended.
        self._saw_at: float | None = None
        self._failures = 0
        self._throttled = False
        self._standing: dict[str, Notice] = {}
        self._owes = False
        self._told: float | None = None

    @property
    def name(self) -> str:
        """The name of the source."""
        return self._source.name

    @property
    def withdraws(self) -> bool:
        """Whether the source withdraws a notice by no longer showing it."""
        return self._source.withdraws

    @property
    def alive(self) -> bool:
        """Whether the poller's thread lives, or was stopped in order, or has not started. False: the thread has died."""
        return self._stop.is_set() or self._thread.ident is None or self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 0.0) -> None:
        """Stop the thread, and wait for it up to `timeout` seconds. A poll that hangs is left to its own timeout.

        If the source still owes its cloud an acknowledgement, the wait is at least `LAST_WORD`.
        """
        with self._lock:  # after this the poller reports nothing more
            self._stop.set()
        self._thread.join(max(timeout, LAST_WORD) if self._owes else timeout)

    def acknowledge(self, notice_id: str) -> None:
        """Tell the cloud to go ahead. The source's own thread sends it, at its next poll or at its end."""
        if isinstance(self._source, Acknowledging):
            self._owes = True
            self._source.acknowledge(notice_id)

    def check(self, now: float) -> None:
        """Report an overdue poll, and log the lines that `CommonHealth` has kept. Call this from another thread."""
        with self._lock:
            problem = None if self._stop.is_set() else self._looks.problem(now)
            if problem is not None:
                self._take_health(problem)
        if self._common_health is not None:
            for names, (level, words) in self._common_health.due(now):
                logger.log(level, "%s: %s", names, words)

    def _run(self) -> None:
        with self._lock:
            if not self._stop.is_set():  # `stop` may come before the thread's first turn
                self._take_health(STARTING)
        try:
            while not self._stop.is_set():
                started = self._clock.monotonic()
                self.look()
                spent = self._clock.monotonic() - started
                self._clock.wait(self._stop, max(0.0, self.delay() - spent))
        finally:
            self._source.close()

    def look(self) -> None:
        """Poll once, and post the changes."""
        began = self._clock.monotonic()
        sighting = self._poll()
        with self._lock:
            if not self._stop.is_set():  # after `stop`, nobody takes events
                self._tell(sighting, None if self._saw_at is None else began - self._saw_at)

    def _tell(self, sighting: Sighting, unseen: float | None) -> None:
        """Post the changes of one poll.

        Args:
            sighting: the result of the poll.
            unseen: seconds from the end of the last poll that saw to the start of this one. None: no earlier poll saw.
        """
        now = self._clock.monotonic()
        self._looks.ended(now, max(self._source.interval, LONGEST_WAIT))
        if self._count is not None:
            self._count(self._source.name, sighting.health)
        self._failures = 0 if sighting.health.seeing else self._failures + 1
        self._throttled = sighting.health.reason == "throttled"
        if sighting.health.seeing:
            self._saw_at = now
        self._take_health(sighting.health)
        promised = self._source.told if isinstance(self._source, Promising) else None
        if promised is not None and promised != self._told:
            self._told = promised
            self._post(WindowTold(promised))
        for notice in sighting.notices:
            if self._put_off(notice):
                self._post(NoticeGone(notice.id))
            if self._is_news(notice):
                self._standing[notice.id] = notice
                self._post(NoticeSeen(notice, unseen))
        if sighting.health.seeing and self._source.withdraws:
            shown = {notice.id for notice in sighting.notices}
            for gone in [known for known in self._standing if known not in shown]:
                del self._standing[gone]
                self._post(NoticeGone(gone))

    def delay(self) -> float:
        """Return the seconds from the start of the last poll to the start of the next."""
        if not self._failures:
            return self._source.interval
        backed_off = self._source.interval * 2.0 ** min(self._failures - 1, 10)
        # The jitter only shortens the wait, so that the cap holds. A thousand machines that went blind together poll apart.
        delay = min(LONGEST_WAIT, backed_off) * (1 - 0.1 * self._rng.random())
        # The poller polls a service that throttles no more often than a service that answers.
        return max(self._source.interval, delay) if self._throttled else delay

    def _poll(self) -> Sighting:
        try:
            return self._source.poll()
        except Exception as error:  # noqa: BLE001 (an error makes the source blind, and does not end the poller)
            return Sighting(blind("garbage", f"the source failed: {type(error).__name__}: {error}"))

    def _is_news(self, notice: Notice) -> bool:
        known = self._standing.get(notice.id)
        if known is None or abs(known.deadline - notice.deadline) > JITTER:
            return True
        return (known.kind, known.severity) != (notice.kind, notice.severity)

    def _put_off(self, notice: Notice) -> bool:
        """Return whether the source has moved a known notice to a later time.

        Then the first notice is withdrawn and the second one is new (GCP and AWS let people choose another time). A near
        deadline does not count: there a wrong clock is likelier.
        """
        known = self._standing.get(notice.id)
        if known is None or not self._source.withdraws:
            return False
        both_later = known.severity is Severity.LATER and notice.severity is Severity.LATER
        far = known.deadline - self._clock.monotonic() > NEAR
        return both_later and far and notice.deadline - known.deadline > _PUT_OFF

    def _take_health(self, health: Health) -> None:
        now, before = self._clock.monotonic(), self._health
        self._health = health
        line = self._mention.of(health, now)
        if self._common_health is not None:
            line = self._common_health.says(self._source.name, health, line, now)
        if line is not None:
            level, words = line
            logger.log(level, "%s: %s", self._source.name, words)
        if health != before:  # new details of the same reason count too: `status` shows the newest
            self._post(HealthChanged(self._source.name, health, self._mention.since))


# The deadline of a poll. A source whose poll never ends sees nothing, and cannot report that itself.
#
# A source has its own timeouts, but they cannot end every call: the kernel may hold a read from a dead file server for
# hours. So another thread keeps the time (law 4). Pure: events and the time come in, a health goes out.

#: Seconds by which a poll may be late: an overloaded machine is slow, and not blind.
GRACE = 5.0
#: Seconds between two checks of a poller.
CHECK_EVERY = 2.0

_ADVICE = (
    "it does not answer: a file's file system may hang (try df), so name a path on a local disk; for a cloud's source, restart spotguard "
    "and report it"
)


class PollDeadline:
    """The deadline of one source's next poll.

    Args:
        longest: seconds that a poll may take by the source's own timeouts.
        now: monotonic seconds at which the first poll begins.
    """

    def __init__(self, longest: float, now: float) -> None:
        self._longest = longest
        self._ended_at = now
        self._due = now + longest + GRACE

    def ended(self, now: float, pause: float) -> None:
        """Note that a poll ended; the next one begins within `pause` seconds."""
        self._ended_at = now
        self._due = now + pause + self._longest + GRACE

    def problem(self, now: float) -> Health | None:
        """Return a blind health if a poll is overdue; else None."""
        if now < self._due:
            return None
        words = f"no answer for {now - self._ended_at:.0f} s; a poll may take {self._longest:g} s"
        return blind("overdue", words, _ADVICE)
