"""The follower of a service agent's feed: this run takes the service's notices and health as if it had polled itself.

So a machine polls its cloud's metadata service once a second, not once a second for each run. If the service agent dies,
goes silent or polls nothing, this run logs that and polls for itself at once. It calls the service again until the
service is back. A notice that the service delivered and no source shows any more is withdrawn then (`Handover`).
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import get_args

from ...hooks.ipc import protocol
from ...hooks.ipc.protocol import Message
from ...providers.clock import Clock
from ...providers.errors import ProtocolError
from ...providers.health import SEEING, Health, Reason, Sight, blind
from ...providers.notice import Notice, NoticeKind, Severity
from ..events import Event, HealthChanged, NoticeGone, NoticeSeen, SourceGone, WindowTold
from ..ipc.client import AgentClient
from .feed import BEAT
from .health_log import CommonHealth, HealthLog, Line
from .poller import LONGEST_WAIT, Poller

logger = logging.getLogger("spotguard.agent")

NAME = "service agent"
_FIRST_WAIT = 0.25
#: Seconds for the first answer. The kernel accepts connections for a stopped process too, so a connection proves nothing.
_ANSWERS_IN = 2.0
#: Seconds for the next sign of life: two missed ones, and some time for a slow service.
_SILENCE = 2 * BEAT + 2.0


class RemoteFeed:
    """A connection that follows a service agent, and this run's own pollers while there is no such connection."""

    def __init__(
        self,
        path: Path,
        post: Callable[[Event], None],
        clock: Clock,
        rng: random.Random,
        own: Callable[[Callable[[Event], None]], Sequence[Poller]],
        *,
        answers_in: float = _ANSWERS_IN,
        silence: float = _SILENCE,
        beat: float = BEAT,
        ours: Collection[str] = (),
    ) -> None:
        """Prepare; `start` makes the first call.

        Args:
            path: the socket of the service agent.
            post: takes the events.
            clock: the clock of this feed.
            rng: spreads the times of the calls.
            own: makes this run's own pollers, for the time in which the service does not poll. They post their events with
                the function that `own` receives. This object starts them.
            answers_in: seconds for the first answer.
            silence: seconds for the next sign of life.
            beat: seconds for which each source has to have seen before a handover is over.
            ours: the names of the sources that this run polls in any case. A source of the service with such a name is a
                different source, and its health is ignored.
        """
        self._path = path
        self._post = post
        self._clock = clock
        self._rng = rng
        self._make_own = own
        self._answers_in = answers_in
        self._silence = silence
        self._beat = beat
        self._hidden = {NAME, *ours}
        self._own: Sequence[Poller] = ()
        self._caller: AgentClient | None = None
        #: Whether the connection's first answer has come.
        self._answered = False
        self._guarded: bool | None = None
        #: The health of each source that the service reported, while this run trusts the service.
        self._said: dict[str, Health] = {}
        self._mentions: dict[str, HealthLog] = {}
        self._common_health: CommonHealth | None = None
        #: How many sources the service polls.
        self._sources = 0
        #: Seconds of warning that the cloud itself promises, as the service agent reported them; 0: none.
        self._window = 0.0
        #: Sources for which the service or an own poller reported a health.
        self._named: set[str] = set()
        #: Sources that withdraw a notice by no longer showing it.
        self._withdrawing: set[str] = set()
        self._handover = Handover()
        #: Held while an event is passed on, because own pollers post on their threads. Never held while this run stops a
        #: poller, because that takes the poller's own lock.
        self._saying = threading.Lock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="spotguard-remote", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether its own thread lives, and the threads of the pollers that replace the service (as for a `Poller`)."""
        here = self._stop.is_set() or self._thread.ident is None or self._thread.is_alive()
        return here and all(poller.alive for poller in self._own)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 0.0) -> None:
        self._stop.set()
        with self._lock:
            if self._caller is not None:
                self._caller.hang_up()
        self._thread.join(timeout)

    def check(self, now: float) -> None:
        """Check this run's own pollers. A stuck service needs no check: it goes silent, and this run stops trusting it."""
        for poller in self._own:
            poller.check(now)
        for names, line in () if (common_health := self._common_health) is None else common_health.due(now):
            _log(names, line)

    def acknowledge(self, notice_id: str) -> None:
        """Acknowledge through this run's own pollers.

        The service agent cannot acknowledge for this run: it polls for other runs too, and their work may not be saved.
        """
        for poller in self._own:
            poller.acknowledge(notice_id)
        if not self._own:
            logger.info(
                "not acknowledged: the service agent at %s watches, and not for this run alone", self._path
            )

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._stop.is_set():
            try:
                self._call()
                wait = _FIRST_WAIT
            except TimeoutError:
                self._unguarded("it sends nothing")
            except (OSError, ProtocolError) as error:
                self._unguarded(str(error))
            self._call_off()
            self._clock.wait(self._stop, wait * (1 - 0.1 * self._rng.random()))
            wait = min(LONGEST_WAIT, wait * 2)
        self._look_ourselves(())

    def _call(self) -> None:
        """Follow the service over one connection, until it ends or `stop` is called.

        Raises:
            OSError, ProtocolError: the connection failed. A `TimeoutError` means that the service went silent.
        """
        caller = AgentClient(self._path, protocol.Watch(os.getpid()), self._answers_in)
        with self._lock:
            self._caller = caller
        self._answered = False
        try:
            while not self._stop.is_set():
                message = caller.receive(self._silence if self._answered else self._answers_in)
                if message is None:
                    if not self._stop.is_set():
                        self._unguarded("it closed the connection")
                    return
                self._take(message)
                self._call_off()
        finally:
            with self._lock:
                self._caller = None
            caller.close()

    def _take(self, message: Message) -> None:
        if isinstance(message, protocol.Refused):
            raise ProtocolError(message.reason)
        if isinstance(message, protocol.Watched):
            self._answered = True
            self._guarded_by(message.sources)
            self._promised(message.window)
        elif not self._answered:
            raise ProtocolError("it does not report what it watches")
        elif isinstance(message, protocol.FeedNotice):
            self._say(NoticeSeen(_notice(message, self._clock.monotonic())))
        elif isinstance(message, protocol.FeedNoticeGone):
            self._say(NoticeGone(message.id))
        elif isinstance(message, protocol.FeedHealth) and message.source not in self._hidden:
            self._heard(message.source, _health(message), max(0.0, message.seconds))

    def _promised(self, window: float) -> None:
        """Post the promised window when it changes; the service repeats it with each sign of life."""
        if window > 0 and window != self._window:
            self._window = window
            self._post(WindowTold(window))

    def _heard(self, source: str, health: Health, seconds: float) -> None:
        """Take in the health of a source; the service repeats it every few seconds.

        The health goes into this run's log too, because this run's user may never see the service's log.
        """
        now = self._clock.monotonic()
        line = self._mentions.setdefault(source, HealthLog()).of(health, now)
        if self._common_health is None:
            self._common_health = CommonHealth(
                source
            )  # the first of a cloud's sources is also the first that it names
        if (line := self._common_health.says(source, health, line, now)) is not None:
            _log(source, line)
        if self._said.get(source) != health:
            self._said[source] = health
            self._say(HealthChanged(source, health, now - seconds))

    def _say(self, event: Event) -> None:
        """Pass on an event of the service or of an own poller. Own pollers call this on their threads."""
        with self._saying:
            self._handover.take(event)
            if isinstance(event, HealthChanged):
                self._named.add(event.source)
            self._post(event)

    def _call_off(self) -> None:
        """Withdraw the notices that an earlier teller delivered and that no source shows any more."""
        own = self._own
        sources = len(own) or self._sources
        with self._saying:
            withdrawn = self._handover.over(
                self._clock.monotonic(), sources=sources, withdrawing=self._withdrawing, beat=self._beat
            )
        for id in withdrawn:
            self._post(NoticeGone(id))

    def _guarded_by(self, sources: int) -> None:
        """Take the service's first answer: it polls this many sources.

        A service that polls nothing would never deliver a notice. Then this run polls for itself, if it has sources.
        """
        if self._guarded is True:
            return
        self._guarded = True
        health = SEEING
        own = self._own_pollers() if sources <= 0 else ()
        if sources > 0:
            logger.info("the service agent at %s watches for this run", self._path)
        elif own:
            logger.warning("the service agent at %s watches nothing: looking for notices here", self._path)
            health = Health(Sight.SEEING, detail="it watches nothing: this run looks for notices itself")
        else:
            logger.info("the service agent at %s watches nothing, and here is nothing to watch", self._path)
            health = Health(Sight.SEEING, detail="it watches nothing, and here is nothing to watch")
        self._post(HealthChanged(NAME, health, self._clock.monotonic()))
        self._sources = max(0, sources)
        # Health from own pollers, or from the service before it went, holds no longer. The service reports its own next.
        gone, self._named = sorted(self._named), set()
        self._look_ourselves(own, [SourceGone(source) for source in gone])

    def _unguarded(self, why: str) -> None:
        if self._guarded is False or self._stop.is_set():
            return
        self._guarded = False
        logger.warning(
            "the service agent at %s does not answer (%s): looking for notices here", self._path, why
        )
        now = self._clock.monotonic()
        health = blind("unguarded", f"{self._path}: {why}", "systemctl status spotguard")
        self._post(HealthChanged(NAME, health, now))
        # The service's last report about a source does not say what this run sees.
        lost = [HealthChanged(source, health, now) for source in self._said]
        self._said, self._mentions, self._common_health, self._sources = {}, {}, None, 0
        self._look_ourselves(self._own_pollers(), lost)

    def _own_pollers(self) -> Sequence[Poller]:
        own = self._make_own(self._say)
        self._withdrawing |= {poller.name for poller in own if poller.withdraws}
        return own

    def _look_ourselves(self, pollers: Sequence[Poller], news: Sequence[Event] = ()) -> None:
        """Replace this run's own pollers by `pollers`. `news` are the events about the tellers before them."""
        for poller in self._own:
            poller.stop()
        with self._saying:
            self._handover.changes(self._clock.monotonic())
        for event in news:
            self._post(event)
        self._own = pollers
        for poller in self._own:
            poller.start()


def _log(names: str, line: Line) -> None:
    level, words = line
    logger.log(level, "%s, through the service agent: %s", names, words)


def _notice(message: protocol.FeedNotice, now: float) -> Notice:
    try:
        kind, severity = NoticeKind(message.kind), Severity(message.severity)
    except ValueError as error:
        raise ProtocolError(f"it sends an unknown notice: {error}") from error
    left = max(message.seconds_left, 0.0)
    if severity is Severity.TERMINAL:
        # The socket carries seconds left. They never exceed the kind's own window, so no message moves a deadline later.
        left = min(left, max(message.window, 0.0))
    return Notice(message.id, kind, message.source, now + left, now, severity, message.detail, message.window)


def _health(message: protocol.FeedHealth) -> Health:
    try:
        sight = Sight(message.sight)
    except ValueError as error:
        raise ProtocolError(f"it sends an unknown health: {error}") from error
    if sight is Sight.SEEING:
        return Health(sight, detail=message.detail, advice=message.advice)
    reasons: tuple[Reason, ...] = get_args(Reason)
    if message.reason not in reasons:
        raise ProtocolError(f"it sends an unknown health: {message.reason[:40]!r}")
    return Health(sight, message.reason, message.detail, message.advice)


# The handover between two tellers of notices: the service agent, or this run's own pollers. The second teller has to show
# the first one's notices again, or they are withdrawn.
#
# Example: a service agent delivers a reboot in three hours and dies, and the reboot is cancelled. The next teller sees
# nothing, and withdraws nothing, because it has never shown that notice. Such a notice is owed. It is withdrawn once every
# source of the current teller has seen for a full beat without showing it. This concerns notices that end the machine
# later. A notice that ends it now stands until its deadline. A notice whose source never withdraws is never withdrawn here.
# Pure: events and the time come in.


class Handover:
    """The notices of one run that outlive a change of teller. It takes in every event of every teller."""

    def __init__(self) -> None:
        #: The notices that end the machine later, from any teller, and that no teller has withdrawn.
        self._standing: dict[str, Notice] = {}
        #: The standing notices that the current teller has not shown yet.
        self._owed: set[str] = set()
        #: The current teller's report about each source.
        self._sight: dict[str, HealthChanged] = {}
        #: Monotonic seconds at which the current teller began.
        self._since = 0.0

    def take(self, event: Event) -> None:
        """Take in an event of the current teller."""
        if isinstance(event, HealthChanged):
            self._sight[event.source] = event
        elif isinstance(event, NoticeSeen):
            self._drop(event.notice.id)
            if event.notice.severity is Severity.LATER:
                self._standing[event.notice.id] = event.notice
        elif isinstance(event, NoticeGone):
            self._drop(event.id)

    def changes(self, now: float) -> None:
        """Begin a new teller: it owes every standing notice."""
        self._owed = set(self._standing)
        self._sight, self._since = {}, now

    def over(self, now: float, *, sources: int, withdrawing: Collection[str], beat: float) -> list[str]:
        """Return the ids of the notices that are withdrawn now, each once.

        Args:
            now: monotonic seconds.
            sources: how many sources the current teller polls.
            withdrawing: names of the sources that withdraw a notice by no longer showing it.
            beat: seconds for which each source has to have seen.
        """
        if not self._owed or not 0 < sources <= len(self._sight):
            return []
        if not all(
            one.health.seeing and now - max(one.since, self._since) >= beat for one in self._sight.values()
        ):
            return []
        gone = [
            id for id in self._owed if self._source(id) in self._sight and self._source(id) in withdrawing
        ]
        self._owed.clear()  # the current teller cannot know the rest
        for id in gone:
            self._drop(id)
        return sorted(gone)

    def _source(self, id: str) -> str:
        return self._standing[id].source

    def _drop(self, id: str) -> None:
        self._standing.pop(id, None)
        self._owed.discard(id)
