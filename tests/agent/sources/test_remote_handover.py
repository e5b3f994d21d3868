"""What one told and the next one does not show: when it is over, and when that cannot be known."""

from __future__ import annotations

from dataclasses import replace

from spotguard.agent.events import HealthChanged, NoticeGone, NoticeSeen
from spotguard.agent.sources.remote import Handover
from spotguard.providers.health import SEEING, Health, blind
from spotguard.providers.notice import Severity
from tests.fakes.source import a_notice

REBOOT = replace(a_notice("reboot", deadline=9000.0), severity=Severity.LATER)
SOURCE = REBOOT.source
BLIND = blind("unreachable", "refused")
BEAT = 5.0


class Told:
    """A reboot was told by one who tells no more since 1000."""

    def __init__(self, *notices: NoticeSeen) -> None:
        self.handover = Handover()
        for notice in notices or (NoticeSeen(REBOOT),):
            self.handover.take(notice)
        self.handover.changes(1000.0)

    def sees(self, since: float, *sources: str, health: Health = SEEING) -> None:
        for source in sources or (SOURCE,):
            self.handover.take(HealthChanged(source, health, since))

    def over(self, now: float, sources: int = 1, withdrawing: tuple[str, ...] = (SOURCE,)) -> list[str]:
        return self.handover.over(now, sources=sources, withdrawing=withdrawing, beat=BEAT)


def test_a_notice_that_the_next_service_does_not_show_is_over() -> None:
    """Once it has seen for a full beat, which begins when it does, and no sooner than it tells. And it is said once."""
    for since in (0.0, 1003.0):
        told = Told()
        assert told.over(1100.0) == [], "nobody has said yet that he sees"
        told.sees(since)
        begins = max(since, 1000.0)
        assert told.over(begins + BEAT - 0.1) == []
        assert told.over(begins + BEAT) == ["reboot"]
        assert told.over(begins + 2 * BEAT) == []
        told.handover.changes(1200.0)
        told.sees(1200.0)
        assert told.over(1300.0) == []


def test_a_notice_that_is_shown_again_stays() -> None:
    """And is what the one after that has to show."""
    told = Told()
    told.sees(1000.0)
    told.handover.take(NoticeSeen(REBOOT))
    assert told.over(1100.0) == []
    told.handover.changes(1200.0)
    told.sees(1200.0)
    assert told.over(1205.0) == ["reboot"]


def test_a_withdrawn_or_begun_notice_is_not_withdrawn_at_a_handover() -> None:
    """The first is over, the second is left to its deadline."""
    for said in (NoticeGone("reboot"), NoticeSeen(a_notice("reboot"))):
        told = Told()
        told.handover.take(said)
        told.sees(1000.0)
        assert told.over(1100.0) == []


def test_a_source_that_does_not_see_withdraws_nothing() -> None:
    """Each source has to, and all of them have to be known."""
    told = Told()
    told.sees(1000.0)
    assert told.over(1100.0, sources=2) == [], "one of two has not said anything"
    told.sees(1000.0, "another", health=BLIND)
    assert told.over(1100.0, sources=2) == []
    told.sees(1100.0, "another")
    assert told.over(1104.9, sources=2) == []
    assert told.over(1105.0, sources=2) == ["reboot"]
    assert Told().over(1100.0, sources=0) == [], "nobody looks"


def test_only_the_same_source_and_one_that_withdraws_can_tell() -> None:
    """A `--deadline` that was said to the service is not seen here; AWS's notice that vanishes is not known to be void."""
    told = Told()
    told.sees(1000.0, "another")
    assert told.over(1100.0, withdrawing=("another", SOURCE)) == []
    told = Told()
    told.sees(1000.0)
    assert told.over(1100.0, withdrawing=()) == []


def test_only_what_ends_the_machine_later_is_owed() -> None:
    advice = replace(REBOOT, id="advice", severity=Severity.ADVISORY)
    told = Told(NoticeSeen(a_notice("end")), NoticeSeen(advice), NoticeSeen(REBOOT))
    told.sees(1000.0)
    assert told.over(1100.0) == ["reboot"]
