"""Let the machine's service agent do the polling: its notices and its sight, as if they were seen here.

A cloud's metadata service is asked once a second for each machine, not for each run on it. When the service
dies or goes silent, or watches nothing, that is said, this run looks for itself at once, and the service is asked
again until it is back. What it told and nobody shows any more is withdrawn then (`Handover`).
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
#: Seconds for the first answer, and for a sign of life after it: two are missed, and some time is left for a
#: service that is slow. A stopped process accepts connections all the same, for the kernel does it.
_ANSWERS_IN = 2.0
_SILENCE = 2 * BEAT + 2.0


class RemoteFeed:
    """A watching connection to a service agent, and watchers of our own while there is none."""

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
        """`own` makes the watchers to be used while the service does not watch, which post as they are told to; they
        are started here. `ours` are the names of the sources that this run looks through in any case: what the service
        was told under such a name is another thing."""
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
        #: What the service said of each source, as long as it is believed.
        self._said: dict[str, Health] = {}
        self._mentions: dict[str, HealthLog] = {}
        self._chorus: CommonHealth | None = None
        #: Through how many sources the service looks.
        self._sources = 0
        #: Seconds of warning that the cloud's own service promises, as the service agent has told; 0: none.
        self._window = 0.0
        #: Sources of which something was said, by anybody, and those that withdraw what they show no longer.
        self._named: set[str] = set()
        self._withdrawing: set[str] = set()
        self._handover = Handover()
        #: Held for what our own watchers say on their threads; never while one of them is stopped, who holds his own.
        self._saying = threading.Lock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="spotguard-relay", daemon=True)

    @property
    def alive(self) -> bool:
        """As a `Poller`'s: its own thread, and those of the watchers that look in the service's place."""
        here = self._stop.is_set() or self._thread.ident is None or self._thread.is_alive()
        return here and all(watcher.alive for watcher in self._own)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 0.0) -> None:
        self._stop.set()
        with self._lock:
            if self._caller is not None:
                self._caller.hang_up()
        self._thread.join(timeout)

    def check(self, now: float) -> None:
        """Of our own watchers. A service that is stuck says nothing, and is not believed for long."""
        for watcher in self._own:
            watcher.check(now)
        for names, line in () if (chorus := self._chorus) is None else chorus.due(now):
            _log(names, line)

    def acknowledge(self, notice_id: str) -> None:
        """By watchers of our own. The service watches for others too, whose work is not known to be saved."""
        for watcher in self._own:
            watcher.acknowledge(notice_id)
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
                self._unguarded("it says nothing")
            except (OSError, ProtocolError) as error:
                self._unguarded(str(error))
            self._call_off()
            self._clock.wait(self._stop, wait * (1 - 0.1 * self._rng.random()))
            wait = min(LONGEST_WAIT, wait * 2)
        self._look_ourselves(())

    def _call(self) -> None:
        """One connection, from its beginning to its end. Raises what ended it, except our own `stop`."""
        caller = AgentClient(self._path, protocol.Watch(os.getpid(), severity=True), self._answers_in)
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
            raise ProtocolError("it does not say what it watches")
        elif isinstance(message, protocol.FeedNotice):
            self._say(NoticeSeen(_notice(message, self._clock.monotonic())))
        elif isinstance(message, protocol.FeedNoticeGone):
            self._say(NoticeGone(message.id))
        elif isinstance(message, protocol.FeedHealth) and message.source not in self._hidden:
            self._heard(message.source, _health(message), max(0.0, message.seconds))

    def _promised(self, window: float) -> None:
        """Said again with each sign of life."""
        if window > 0 and window != self._window:
            self._window = window
            self._post(WindowTold(window))

    def _heard(self, source: str, health: Health, seconds: float) -> None:
        """Said again every few seconds. Who runs here may never see the service's log, so ours says it too."""
        now = self._clock.monotonic()
        line = self._mentions.setdefault(source, HealthLog()).of(health, now)
        if self._chorus is None:
            self._chorus = CommonHealth(
                source
            )  # the first of a cloud's sources is also the first that it names
        if (line := self._chorus.says(source, health, line, now)) is not None:
            _log(source, line)
        if self._said.get(source) != health:
            self._said[source] = health
            self._say(HealthChanged(source, health, now - seconds))

    def _say(self, event: Event) -> None:
        """Pass on what the service says, or a watcher of our own, on whose thread this is then."""
        with self._saying:
            self._handover.take(event)
            if isinstance(event, HealthChanged):
                self._named.add(event.source)
            self._post(event)

    def _call_off(self) -> None:
        """What was told by one who does not tell any more, and is shown by nobody."""
        own = self._own
        sources = len(own) or self._sources
        with self._saying:
            over = self._handover.over(
                self._clock.monotonic(), sources=sources, withdrawing=self._withdrawing, beat=self._beat
            )
        for id in over:
            self._post(NoticeGone(id))

    def _guarded_by(self, sources: int) -> None:
        """It is there. One that watches nothing would never tell of a notice: then we look ourselves, if we can."""
        if self._guarded is True:
            return
        self._guarded = True
        health = SEEING
        own = self._own_watchers() if sources <= 0 else ()
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
        # What we saw ourselves, or it before it went, is no sight of anybody now. What it sees, it says next.
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
        lost = [
            HealthChanged(source, health, now) for source in self._said
        ]  # its last word is no sight of ours
        self._said, self._mentions, self._chorus, self._sources = {}, {}, None, 0
        self._look_ourselves(self._own_watchers(), lost)

    def _own_watchers(self) -> Sequence[Poller]:
        own = self._make_own(self._say)
        self._withdrawing |= {watcher.name for watcher in own if watcher.withdraws}
        return own

    def _look_ourselves(self, watchers: Sequence[Poller], news: Sequence[Event] = ()) -> None:
        """These look from now on, and nobody else of ours. `news` is of those who looked before."""
        for watcher in self._own:
            watcher.stop()
        with self._saying:
            self._handover.changes(self._clock.monotonic())
        for event in news:
            self._post(event)
        self._own = watchers
        for watcher in self._own:
            watcher.start()


def _log(names: str, line: Line) -> None:
    level, words = line
    logger.log(level, "%s, through the service agent: %s", names, words)


def _notice(said: protocol.FeedNotice, now: float) -> Notice:
    try:
        kind = NoticeKind(said.kind)
    except ValueError:  # a newer service knows more kinds
        kind = NoticeKind.UNKNOWN
    try:
        severity = Severity(said.severity)
    except ValueError:  # whatever else it is: to save for nothing costs less than to miss the end
        severity = Severity.TERMINAL
    left = max(said.seconds_left, 0.0)
    if severity is Severity.TERMINAL:
        # Seconds left cross the socket, never more than the kind's own window, so that no word moves a deadline away.
        left = min(left, max(said.window, 0.0))
    return Notice(said.id, kind, said.source, now + left, now, severity, said.detail, said.window)


def _health(said: protocol.FeedHealth) -> Health:
    try:
        sight = Sight(said.sight)
    except ValueError:  # a newer service knows more: whatever it is, it is not seeing
        sight = Sight.BLIND
    if sight is Sight.SEEING:
        return Health(sight, detail=said.detail, advice=said.advice)
    # A reason that this program does not know is shown in the words that came with it.
    reasons: tuple[Reason, ...] = get_args(Reason)
    reason: Reason = said.reason if said.reason in reasons else "unreachable"
    return Health(sight, reason, said.detail, said.advice)


# When another one looks in our place: what the first has told, the second has to show again, or it is over.
#
# A service agent tells of a reboot in three hours and dies; the reboot is cancelled; whoever looks next sees nothing, and
# withdraws nothing, for it has never shown it. What is owed like that is gone once every source of the one who tells now
# has seen for a full beat and does not show it. Only what ends the machine later: what ends it now is left to its
# deadline, and what its source never withdraws is never called off. Pure: what was said and the time come in.


class Handover:
    """Of one run. Takes in everything that any of those says who look for it."""

    def __init__(self) -> None:
        #: What ends the machine later, told by anybody, and not taken back.
        self._standing: dict[str, Notice] = {}
        #: Of those, what the one who tells now has not shown yet.
        self._owed: set[str] = set()
        #: What the one who tells now says of each source, and since when that one tells.
        self._sight: dict[str, HealthChanged] = {}
        self._since = 0.0

    def take(self, event: Event) -> None:
        """The one who tells now said this."""
        if isinstance(event, HealthChanged):
            self._sight[event.source] = event
        elif isinstance(event, NoticeSeen):
            self._drop(event.notice.id)
            if event.notice.severity is Severity.LATER:
                self._standing[event.notice.id] = event.notice
        elif isinstance(event, NoticeGone):
            self._drop(event.id)

    def changes(self, now: float) -> None:
        """Another one tells from now on."""
        self._owed = set(self._standing)
        self._sight, self._since = {}, now

    def over(self, now: float, *, sources: int, withdrawing: Collection[str], beat: float) -> list[str]:
        """The ids of what is over now, each once.

        Args:
            sources: how many of them the one who tells now has.
            withdrawing: names of the sources whose silence takes a notice back.
            beat: seconds that each has to have seen for.
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
        self._owed.clear()  # what is left cannot be known by this one
        for id in gone:
            self._drop(id)
        return sorted(gone)

    def _source(self, id: str) -> str:
        return self._standing[id].source

    def _drop(self, id: str) -> None:
        self._standing.pop(id, None)
        self._owed.discard(id)
