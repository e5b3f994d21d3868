"""One thread for each source of notices: it looks for ever, at its own cadence, and is never silent (law 4).

It never exits because a look failed: an agent that dies of a bad answer is blind for good
(aws-node-termination-handler#916).
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping

from ...providers.clock import Clock
from ...providers.health import STARTING, Health, blind
from ...providers.notice import JITTER, Acknowledging, Notice, NoticeSource, Promising, Severity, Sighting
from ..core.notices import NEAR
from ..events import Event, HealthChanged, NoticeGone, NoticeSeen, WindowTold
from .health_log import CommonHealth, HealthLog

logger = logging.getLogger("spotguard.agent")

#: A window may be 10 s (Azure): a longer wait between looks would spend a part of it that matters.
LONGEST_WAIT = 2.0
#: Seconds at the end for a word that the source still owes its cloud: somebody asked for it to be said.
LAST_WORD = 2.0
#: A far deadline that moves later by more than this is another one, and no clock that is put right.
_PUT_OFF = 60.0


class Poller:
    """Owns a source: nobody else calls it."""

    def __init__(
        self,
        source: NoticeSource,
        post: Callable[[Event], None],
        clock: Clock,
        rng: random.Random,
        chorus: CommonHealth | None = None,
        count: PollCount | None = None,
    ) -> None:
        """`chorus` is of the sources that look at the same service; `count` is the agent's."""
        self._source = source
        self._post = post
        self._clock = clock
        self._rng = rng
        self._stop = threading.Event()
        #: Held for what is said, never while the source looks: who looks may not come back.
        self._lock = threading.Lock()
        self._looks = PollDeadline(source.longest, clock.monotonic())
        self._thread = threading.Thread(target=self._run, name=f"spotguard-watch-{source.name}", daemon=True)
        self._health: Health | None = None
        self._mention = HealthLog()
        self._chorus = chorus
        self._count = PollCount() if count is None else count
        #: When the last look that saw came to its end.
        self._saw_at: float | None = None
        self._failures = 0
        self._throttled = False
        self._standing: dict[str, Notice] = {}
        self._owes = False
        self._told: float | None = None

    @property
    def name(self) -> str:
        """The source's."""
        return self._source.name

    @property
    def withdraws(self) -> bool:
        """The source's."""
        return self._source.withdraws

    @property
    def alive(self) -> bool:
        """Whether its thread looks for notices. False: it has died, though nobody has stopped it."""
        return self._stop.is_set() or self._thread.ident is None or self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 0.0) -> None:
        """Ask it to end, and wait so long. A look that hangs on a silent network is left to its own timeout."""
        with self._lock:  # from here on nothing more is said
            self._stop.set()
        self._thread.join(max(timeout, LAST_WORD) if self._owes else timeout)

    def acknowledge(self, notice_id: str) -> None:
        """Let the cloud begin: the source's own thread says it, at its next look or at its end."""
        if isinstance(self._source, Acknowledging):
            self._owes = True
            self._source.acknowledge(notice_id)

    def check(self, now: float) -> None:
        """Say so where a look is overdue, and what was kept to be said together. For another thread than the one that
        looks."""
        with self._lock:
            problem = None if self._stop.is_set() else self._looks.problem(now)
            if problem is not None:
                self._feel(problem)
        if self._chorus is not None:
            for names, (level, words) in self._chorus.due(now):
                logger.log(level, "%s: %s", names, words)

    def _run(self) -> None:
        with self._lock:
            if not self._stop.is_set():  # a thread may be late to begin
                self._feel(STARTING)
        try:
            while not self._stop.is_set():
                started = self._clock.monotonic()
                self.look()
                spent = self._clock.monotonic() - started
                self._clock.wait(self._stop, max(0.0, self.delay() - spent))
        finally:
            self._source.close()

    def look(self) -> None:
        """One look, and what is new in it."""
        began = self._clock.monotonic()
        sighting = self._poll()
        with self._lock:
            if not self._stop.is_set():  # else nobody listens any more
                self._tell(sighting, None if self._saw_at is None else began - self._saw_at)

    def _tell(self, sighting: Sighting, unseen: float | None) -> None:
        """`unseen` are the seconds for which nobody had looked, and seen, when this look began."""
        now = self._clock.monotonic()
        self._looks.ended(now, max(self._source.interval, LONGEST_WAIT))
        self._count.ended(self._source.name, sighting.health)
        self._failures = 0 if sighting.health.seeing else self._failures + 1
        self._throttled = sighting.health.reason == "throttled"
        if sighting.health.seeing:
            self._saw_at = now
        self._feel(sighting.health)
        told = self._source.told if isinstance(self._source, Promising) else None
        if told is not None and told != self._told:
            self._told = told
            self._post(WindowTold(told))
        for notice in sighting.notices:
            if self._put_off(notice):
                self._post(NoticeGone(notice.id))
            if self._is_news(notice):
                self._standing[notice.id] = notice
                self._post(NoticeSeen(notice, unseen))
        if sighting.health.seeing and self._source.withdraws:
            here = {notice.id for notice in sighting.notices}
            for gone in [known for known in self._standing if known not in here]:
                del self._standing[gone]
                self._post(NoticeGone(gone))

    def delay(self) -> float:
        """Seconds from the start of the last look to the start of the next."""
        if not self._failures:
            return self._source.interval
        backed_off = self._source.interval * 2.0 ** min(self._failures - 1, 10)
        # Downwards, so that the cap holds: a thousand machines that went blind together look again apart.
        delay = min(LONGEST_WAIT, backed_off) * (1 - 0.1 * self._rng.random())
        # A service that refuses because too much is asked is asked no more than one that answers.
        return max(self._source.interval, delay) if self._throttled else delay

    def _poll(self) -> Sighting:
        try:
            return self._source.poll()
        except Exception as error:  # noqa: BLE001 (one more way to be blind, not an end)
            return Sighting(blind("garbage", f"the source failed: {type(error).__name__}: {error}"))

    def _is_news(self, notice: Notice) -> bool:
        known = self._standing.get(notice.id)
        if known is None or abs(known.deadline - notice.deadline) > JITTER:
            return True
        return (known.kind, known.severity) != (notice.kind, notice.severity)

    def _put_off(self, notice: Notice) -> bool:
        """What was announced for one time is announced for a later one: the first is withdrawn, the other is new.
        (GCP and AWS let people choose another time.) Not where it is near: there a clock is likelier to be wrong."""
        known = self._standing.get(notice.id)
        if known is None or not self._source.withdraws:
            return False
        both_later = known.severity is Severity.LATER and notice.severity is Severity.LATER
        far = known.deadline - self._clock.monotonic() > NEAR
        return both_later and far and notice.deadline - known.deadline > _PUT_OFF

    def _feel(self, health: Health) -> None:
        now, before = self._clock.monotonic(), self._health
        self._health = health
        line = self._mention.of(health, now)
        if self._chorus is not None:
            line = self._chorus.says(self._source.name, health, line, now)
        if line is not None:
            level, words = line
            logger.log(level, "%s: %s", self._source.name, words)
        if health != before:  # other details of the same reason too: `status` shows the newest
            self._post(HealthChanged(self._source.name, health, self._mention.since))


# How often each source was looked at, and how often in vain, and why: counted where it happens, read by whoever likes.
#
# A failed look is no event: there is one every two seconds for as long as a source is blind. So the watchers' threads
# count here, and nobody waits for anybody. Each number has one writer (a source has one watcher at a time), and a copy
# of the whole is one step of the interpreter's.


class PollCount:
    """Of one agent, from its start on. Numbers only grow, also where one watcher follows another."""

    def __init__(self) -> None:
        #: By source, reason and HTTP status; "" and "": it saw.
        self._ended: dict[tuple[str, str, str], int] = {}

    def ended(self, source: str, health: Health) -> None:
        """A look came to its end. On the thread that looked."""
        failed = not health.seeing
        key = (source, health.reason if failed else "", str(health.code) if failed and health.code else "")
        self._ended[key] = self._ended.get(key, 0) + 1

    @property
    def totals(self) -> Mapping[tuple[str, str, str], int]:
        """As they stand: looks by source, reason and HTTP status, "" and "" for those that saw. Any thread."""
        return self._ended.copy()


# Whether a look is overdue: a source whose look does not come to its end sees nothing, and says nothing of it either.
#
# Its timeouts are the source's own, and hold where they can: a read from a file server that is gone is held by the
# kernel, for hours. So somebody else counts (law 4). Pure: what has happened and the time come in, a health goes out.

#: Seconds by which a look may be late: a machine at its limits is slow, and not blind.
GRACE = 5.0
#: Seconds from one count to the next.
CHECK_EVERY = 2.0

_ADVICE = (
    "what it looks at does not answer: of a file, see whether its file system does (df), or name one on a local disk; "
    "else start spotguard again, and report it"
)


class PollDeadline:
    """Of one source: when the last look came to its end, and when the next one has to.

    Args:
        longest: seconds that a look may take, by the source's own timeouts.
        now: the first look begins.
    """

    def __init__(self, longest: float, now: float) -> None:
        self._longest = longest
        self._ended_at = now
        self._due = now + longest + GRACE

    def ended(self, now: float, pause: float) -> None:
        """A look came to its end; the next one begins within `pause` seconds."""
        self._ended_at = now
        self._due = now + pause + self._longest + GRACE

    def problem(self, now: float) -> Health | None:
        """Blindness, where a look is overdue; else None."""
        if now < self._due:
            return None
        words = f"no look for {now - self._ended_at:.0f} s, and one takes {self._longest:g} s at the most"
        return blind("overdue", words, _ADVICE)
