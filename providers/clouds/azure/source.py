"""Azure's notices: Scheduled Events. `Preempt` ends a spot machine in 30 s or less.

The list holds the events of every machine of a set, so the source must know this machine's name. An event that leaves the
list before it starts was called off. An event that leaves it later is over, and "there will be no further impacts".
"""

from __future__ import annotations

import logging

from ...clock import Clock
from ...dates import parse_date
from ...health import SEEING, STARTING, Health, Sight, blind
from ...notice import Notice, Sighting, looked
from ..http import Failure, MetadataAnswer, coded
from .acknowledge import GoAheads
from .document import Document, parse_document
from .enabling import Enabling
from .imds import FIRST_TIMEOUT, TIMEOUT, AzureImds
from .tracker import SOURCE, EventTracker
from .vm_name import OwnName

log = logging.getLogger("spotguard.providers")

#: Seconds that one poll waits for the call that switches the events on.
_PATIENCE = 2.0
#: Seconds by which two clocks may differ without meaning anything: a `Date` has whole seconds, and takes time to arrive.
_APART = 5.0
#: Seconds without an answer after which the next one may take long again, because the events may have been switched off.
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
        vm_name: the user's name for this machine; "" if only the service knows it.
        first_timeout: seconds for the call that switches the events on.
        patience: seconds that one poll waits for that call.
    """

    name = SOURCE
    # "We recommend that you poll the service once per second."
    interval = 1.0
    # The sum of: the name, the call that switches the events on, two short calls beside it, the name again if it is urgent,
    # and a go-ahead.
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
        #: Whether no call has ended yet; whether a document was read.
        self._starting, self._enabled = True, False
        self._answered_at = clock.monotonic()
        self._last = Sighting(STARTING)
        self._said: set[str] = set()

    def poll(self) -> Sighting:
        self._last = looked(SOURCE, self._look)
        return self._last

    def acknowledge(self, notice_id: str) -> None:
        """Allow Azure to begin, once everything that this notice can cost is saved.

        For any thread. The polling thread sends the go-ahead at its next poll, or when it closes the source.
        """
        self._go_aheads.ask(notice_id)

    def close(self) -> None:
        try:
            # The last request may have come just before the end.
            self._go_aheads.send(self._book, self._own.known)
        except Exception:  # nothing could be done about it, and the connections still have to be closed
            log.debug("an acknowledgement failed at the end", exc_info=True)
        self._imds.close()

    def _look(self) -> Sighting:
        self._own.learn()
        answer = self._ask()
        if answer is None:
            return self._last  # too many requests within this second
        if isinstance(answer, Health):
            return Sighting(answer)
        document = (
            parse_document(answer.body) if isinstance(answer, MetadataAnswer) else Document((), "no answer")
        )
        if isinstance(answer, Failure) or (answer.status != 200 and document.problem):
            return Sighting(self._blind(answer, document))
        # From here on the body decides: a document of Azure's counts under any status. If some of it could not be read,
        # or the status is an error, an event missing from the list still stands.
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
        """Return the answer of this poll, from the call that brings one first."""
        answer: MetadataAnswer | Failure | Health | None
        if self._enabled and self._clock.monotonic() - self._answered_at < _SILENCE:
            answer = self._imds.events()
        else:
            answer = self._ask_patiently()
        if isinstance(answer, MetadataAnswer):
            self._answered_at = self._clock.monotonic()
        return answer

    def _ask_patiently(self) -> MetadataAnswer | Failure | Health | None:
        """Ask while the events may be switched off: by one slow call, and by short ones beside it.

        The slow call alone is not enough: on a dead connection it would wait to its timeout.
        """
        begun = self._enabling.begin()
        slow = self._enabling.take(self._patience if begun else 0.0)
        answer = None
        if slow is None and not (begun and self._starting):
            answer = self._imds.events(self._patience)
        if slow is None and not isinstance(answer, MetadataAnswer):
            slow = self._enabling.take(0.0)
        if slow is not None:
            self._starting = False  # whatever the answer was, from now on silence counts as blindness
            return slow
        return _ENABLING if self._starting and not isinstance(answer, MetadataAnswer) else answer

    def _blind(self, answer: MetadataAnswer | Failure, document: Document) -> Health:
        """Return why this answer is no good news."""
        if isinstance(answer, Failure) or answer.status != 200 or answer.body.lstrip().startswith(b"<"):
            return self._imds.judge_events(answer)
        return coded(blind("garbage", f"GET {self._imds.endpoint}: {document.problem}", _REPORT), answer)

    def _seeing(self) -> Health:
        if self._own.known:
            return SEEING
        detail = f"own name not known, any event counts: {self._own.trouble}"
        return Health(Sight.SEEING, detail=detail, advice="pass --vm-name NAME")

    def _say(self, notices: tuple[Notice, ...]) -> None:
        """Warn of notices that may be another machine's: the user has to know why they count."""
        for notice in notices:
            if not self._own.known and notice.id not in self._said:
                log.warning(
                    "%s: this machine's own name is not known (%s), so an event counts that may be another's: %s; "
                    "pass --vm-name",
                    SOURCE,
                    self._own.trouble,
                    notice.detail,
                )
        self._said = {notice.id for notice in notices}


def _wall(answer: MetadataAnswer | Failure, clock: Clock) -> float:
    """Return the wall time against which Azure's dates are read: the answer's `Date`, if the machine's clock clearly differs.

    Otherwise, on a clock that is 15 minutes ahead, an event that begins in 15 minutes would look past.
    """
    ours = clock.time()
    azure_time = parse_date(answer.headers.get("Date")) if isinstance(answer, MetadataAnswer) else None
    return (
        ours if azure_time is None or abs(azure_time - ours) <= _APART else azure_time + 1.0
    )  # plus 1 s: the second of the date may be nearly over
