"""Azure's notices: Scheduled Events, of which `Preempt` is the end of a spot machine in 30 s or less.

The list holds the events of every machine of a set, so this one has to know its name. An event that leaves the list
before it starts was called off; one that leaves it later is over, and "there will be no further impacts".
"""

from __future__ import annotations

import logging

from ...clock import Clock
from ...health import SEEING, STARTING, Health, Sight, blind
from ...notice import Notice, Sighting, looked
from ..http import Failure, MetadataAnswer, coded
from .acknowledge import GoAheads
from .document import Document, parse_date, parse_document
from .enabling import Enabling
from .imds import FIRST_TIMEOUT, TIMEOUT, AzureImds
from .tracker import SOURCE, EventTracker
from .vm_name import OwnName

log = logging.getLogger("spotguard.providers")

#: Seconds that one look waits while the events are being switched on.
_PATIENCE = 2.0
#: Seconds by which two clocks may differ and mean nothing: a `Date` has whole seconds, and is some time on its way.
_APART = 5.0
#: Seconds without an answer after which the next one may take long again: the events may have been switched off.
_SILENCE = 60.0

_ENABLING = blind(
    "starting",
    "enabling: the first call switches scheduled events on, which may take 2 minutes, and is not answered yet",
    "nothing to do: whatever it brings counts",
)
_REPORT = "no notice can be read from this: report it, with this line"


class AzureScheduledEvents:
    """`scheduledevents` as a `NoticeSource`.

    Args:
        vm_name: what the user calls this machine; "" where only the service knows.
        first_timeout: seconds for the call that switches the events on.
        patience: seconds that one look waits for it.
    """

    name = SOURCE
    # "We recommend that you poll the service once per second."
    interval = 1.0
    # The name, the call that switches the events on, two short ones beside it, the name again where it is pressing, and a
    # go-ahead.
    longest = 3 * _PATIENCE + 3 * TIMEOUT
    withdraws = True

    def __init__(
        self,
        imds: AzureImds,
        clock: Clock,
        *,
        vm_name: str = "",
        first_timeout: float = FIRST_TIMEOUT,
        patience: float = _PATIENCE,
    ) -> None:
        self._imds = imds
        self._clock = clock
        self._own = OwnName(imds, clock, vm_name)
        self._book = EventTracker()
        self._go_aheads = GoAheads(imds)
        self._enabling = Enabling(lambda: imds.enable(first_timeout))
        self._patience = patience
        #: No call has come to its end yet; a document was read.
        self._starting, self._enabled = True, False
        self._answered_at = clock.monotonic()
        self._last = Sighting(STARTING)
        self._said: set[str] = set()

    def poll(self) -> Sighting:
        self._last = looked(SOURCE, self._look)
        return self._last

    def acknowledge(self, notice_id: str) -> None:
        """Let Azure begin, once everything that this notice can cost is saved. For any thread: sent at the next look, or
        at the end."""
        self._go_aheads.ask(notice_id)

    def close(self) -> None:
        try:
            self._go_aheads.send(self._book, self._own.known)  # the last may have come together with the end
        except Exception:  # nothing could be done about it, and the connections are still to be given back
            log.debug("an acknowledgement failed at the end", exc_info=True)
        self._imds.close()

    def _look(self) -> Sighting:
        self._own.learn()
        answer = self._ask()
        if answer is None:
            return self._last  # too much was asked in this second
        if isinstance(answer, Health):
            return Sighting(answer)
        document = (
            parse_document(answer.body) if isinstance(answer, MetadataAnswer) else Document((), "no answer")
        )
        if isinstance(answer, Failure) or (answer.status != 200 and document.problem):
            return Sighting(self._blind(answer, document))
        # From here on the body decides: what Azure writes like that is believed under any status. Where something
        # else could not be read, or went wrong, what is not in the list is not gone.
        whole = answer.status == 200 and not document.problem
        if whole:
            self._starting, self._enabled = False, True
            self._enabling.forget()
        if document.events and not self._own.known:
            self._own.learn(pressing=True)
        now, wall = self._clock.monotonic(), _wall(answer, self._clock)
        notices = self._book.read(document.events, self._own.known, now, wall, whole=whole)
        self._say(notices)
        self._go_aheads.send(self._book, self._own.known)
        return Sighting(self._seeing() if whole else self._blind(answer, document), notices)

    def _ask(self) -> MetadataAnswer | Failure | Health | None:
        """The answer of this look, by whichever call brings one first."""
        answer: MetadataAnswer | Failure | Health | None
        if self._enabled and self._clock.monotonic() - self._answered_at < _SILENCE:
            answer = self._imds.events()
        else:
            answer = self._ask_patiently()
        if isinstance(answer, MetadataAnswer):
            self._answered_at = self._clock.monotonic()
        return answer

    def _ask_patiently(self) -> MetadataAnswer | Failure | Health | None:
        """While the events may be switched off: one call that may take long, and short ones beside it, because a
        connection whose server is gone would be waited for just as long."""
        begun = self._enabling.begin()
        slow = self._enabling.take(self._patience if begun else 0.0)
        answer = None
        if slow is None and not (begun and self._starting):
            answer = self._imds.events(self._patience)
        if slow is None and not isinstance(answer, MetadataAnswer):
            slow = self._enabling.take(0.0)
        if slow is not None:
            self._starting = False  # whatever it was, from now on silence is silence
            return slow
        return _ENABLING if self._starting and not isinstance(answer, MetadataAnswer) else answer

    def _blind(self, answer: MetadataAnswer | Failure, document: Document) -> Health:
        """Why this answer is no good news."""
        if isinstance(answer, Failure) or answer.status != 200 or answer.body.lstrip().startswith(b"<"):
            return self._imds.judge_events(answer)
        return coded(blind("garbage", f"GET {self._imds.endpoint}: {document.problem}", _REPORT), answer)

    def _seeing(self) -> Health:
        if self._own.known:
            return SEEING
        detail = f"own name not known, any event counts: {self._own.trouble}"
        return Health(Sight.SEEING, detail=detail, advice="say it: --vm-name NAME")

    def _say(self, notices: tuple[Notice, ...]) -> None:
        """A notice may be somebody else's, and a person has to know why it counts."""
        for notice in notices:
            if not self._own.known and notice.id not in self._said:
                log.warning(
                    "%s: this machine's own name is not known (%s), so an event counts that may be another's: %s; "
                    "say --vm-name",
                    SOURCE,
                    self._own.trouble,
                    notice.detail,
                )
        self._said = {notice.id for notice in notices}


def _wall(answer: MetadataAnswer | Failure, clock: Clock) -> float:
    """The time by which Azure's dates are read: what it says with them, where our own clock is clearly another. What it
    begins in 15 minutes would be past by a clock that is as much ahead."""
    ours = clock.time()
    said = parse_date(answer.headers.get("Date")) if isinstance(answer, MetadataAnswer) else None
    return (
        ours if said is None or abs(said - ours) <= _APART else said + 1.0
    )  # that second may be nearly over
