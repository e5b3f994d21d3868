"""A start that finds a save of an earlier start in flight: it waits, and takes what is whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.catalog import scan
from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.hooks.checkpoint.marker import put_saving
from spotguard.hooks.guard import Guard
from spotguard.hooks.restore.saves_in_flight import SavesInFlight
from spotguard.providers.errors import DeniedError, UnavailableError
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Impatient
from tests.fakes.noticed import notice, trained
from tests.fakes.pruned import prune
from tests.fakes.store import ALL, FakeStore, Fault
from tests.fakes.training import different, guarded, small, step_on, trajectory
from tests.fakes.watched_store import WatchedStore, is_manifest

OLD, NEW = Save(attempt=1, step=10, save=0), Save(attempt=1, step=20, save=1, kind="emergency")


@dataclass
class Story:
    """A store with one whole checkpoint, an announced save that is not complete, and a start that looks at them."""

    store: FakeStore = field(default_factory=FakeStore)
    clock: Impatient = field(default_factory=Impatient)
    #: What happens during the start's waits: a function for each, in order.
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    #: How far the store's clock is ahead of this machine's.
    ahead: float = 1e6

    def __post_init__(self) -> None:
        self.store.time = lambda: self.clock.now + self.ahead
        wait, events = self.clock.wait, iter(self.meanwhile)

        def then(event: threading.Event, timeout: float) -> bool:
            over = wait(event, timeout)
            next(events, lambda: None)()
            return over

        self.clock.wait = then  # type: ignore[method-assign]
        OLD.write(self.store)
        NEW.write_objects(self.store, 0)
        self.in_flight = SavesInFlight(self.store, "run", self.clock)

    def announce(self, left: float, save: Save = NEW) -> None:
        put_saving(self.store, "run", save.name, left)

    def waits(self) -> bool:
        """Whether a start waits that lists the store now."""
        return self.in_flight.wait(scan(self.store, "run"))

    @property
    def waited(self) -> float:
        return sum(self.clock.waits)


def test_it_waits_until_the_save_is_complete() -> None:
    """And no longer: the checkpoint is listed again then."""
    story = Story(
        meanwhile=[lambda: None, lambda: NEW.write_rank(story.store, 0), lambda: NEW.write(story.store)]
    )
    story.announce(60)
    assert story.waits()
    assert story.waited < 5
    assert scan(story.store, "run")[0].complete
    assert not story.waits()  # it is complete, so nothing is left to wait for


def test_a_save_that_does_not_end_is_waited_for_to_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """And five seconds longer, for its last request; once."""
    story = Story()
    story.announce(30)
    assert story.waits()
    assert story.waited == 35
    assert "step 20 is being saved by an earlier attempt of run run: waiting up to 35 s for it" in caplog.text
    assert "the save of step 20 did not complete" in caplog.text
    assert not story.waits()
    assert story.waited == 35


@pytest.mark.parametrize("ahead", [-86400.0, 0.0, 86400.0])
def test_the_clock_of_the_store_decides(ahead: float) -> None:
    """The two machines' clocks may be a day apart: what counts is how long ago the save was announced."""
    story = Story(ahead=ahead + 1e6)
    story.announce(30)
    story.clock.now += 20
    assert story.waits()
    assert story.waited == 15


def test_a_save_whose_time_is_over_is_not_waited_for() -> None:
    """Its machine died yesterday."""
    story = Story()
    story.announce(30)
    story.clock.now += 36
    assert not story.waits()
    assert story.waited == 0


def test_a_save_that_is_given_up_is_not_waited_for_any_longer() -> None:
    """Its objects and its announcement are removed."""
    story = Story(meanwhile=[lambda: None, lambda: story.store.delete([NEW.prefix + SAVING])])
    story.announce(60)
    assert story.waits()
    assert story.waited < 5


def test_an_older_save_than_a_complete_checkpoint_is_not_waited_for() -> None:
    """It was overtaken: a later start has trained on and saved."""
    story = Story()
    story.announce(60)
    Save(attempt=2, step=15).write(story.store)
    assert not story.waits()


def test_a_save_without_an_announcement_is_not_waited_for() -> None:
    """A background checkpoint of a machine that died has no end."""
    assert not Story().waits()


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"crc32":1,"saving":{"store_format":1,"seconds":60.0}}\n', None],
    ids=["empty", "foreign", "damaged", "gone"],
)
def test_an_announcement_that_cannot_be_read_is_as_none(data: bytes | None) -> None:
    """Nothing is waited for, and nothing fails."""
    story = Story()
    story.announce(60)
    folders = scan(story.store, "run")
    if data is None:
        story.store.announcements.clear()
    else:
        story.store.announcements[NEW.prefix + SAVING] = data
    assert not story.in_flight.wait(folders)


def test_no_announcement_holds_a_start_for_ever() -> None:
    """The other ranks of the job wait for the first for five minutes."""
    story = Story()
    story.announce(1e9)
    assert story.waits()
    assert story.waited == 240


def test_a_store_that_fails_is_no_end_of_the_save() -> None:
    """The error is the caller's: an older checkpoint is not taken for it."""
    story = Story()
    story.announce(60)
    story.store.faults = [Fault(at, verbs=ALL, error=lambda: UnavailableError("away")) for at in range(1000)]
    with pytest.raises(UnavailableError):
        story.waits()


def test_a_store_that_keeps_all_objects_is_waited_for_too() -> None:
    """The object by which its clock was read stays there, and means nothing."""
    story = Story()
    story.announce(30)
    story.store.faults = [Fault(0, verbs=("delete",), error=lambda: DeniedError("retained"))]
    assert story.waits()
    assert story.waited == 35


def test_an_announcement_goes_with_its_checkpoint() -> None:
    """Of the one that is kept it stays: nothing reads it there."""
    store = FakeStore()
    for save in (OLD, NEW):
        save.write(store)
        put_saving(store, "run", save.name, 60)
    assert prune(store, "run", keep=1) == [OLD.name]
    assert [*store.announcements] == [NEW.prefix + SAVING]
    assert not any(key.startswith(OLD.prefix) for key in store.objects)


def test_an_announcement_alone_is_removed_with_what_is_old() -> None:
    """A save that died before its first object left it."""
    store = FakeStore()
    put_saving(store, "run", OLD.name, 60)
    NEW.write(store)
    prune(store, "run", keep=1)
    assert store.announcements == {}


@pytest.fixture
def saving(caplog: pytest.LogCaptureFixture) -> Iterator[tuple[WatchedStore, Guard]]:
    """A job whose emergency save of step 3 has everything in the store but its manifest."""
    caplog.set_level(logging.INFO, "spotguard")
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        guard.save()
        step_on(guard, job, 2)
        store.hold(is_manifest)
        guard._agent.hear(notice())
        assert store.reached.wait(100)
        yield store, guard
        store.let_go()


class AtTheWait(logging.Handler):
    """Calls a function when a start says that it waits."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def emit(self, record: logging.LogRecord) -> None:
        if "is being saved by an earlier attempt" in record.getMessage():
            self._then()


def test_the_next_machine_goes_on_from_a_save_that_was_in_flight(saving: tuple[WatchedStore, Guard]) -> None:
    """It starts while the old one still saves, and waits: nothing that the old one did is lost."""
    store, _ = saving
    job, waits = small(), AtTheWait(store.let_go)
    logging.getLogger("spotguard").addHandler(waits)
    try:
        with guarded(store, job.values) as guard:
            assert guard.restore() == 3
    finally:
        logging.getLogger("spotguard").removeHandler(waits)
    assert different(job.bits(), trajectory(small, 3)[3]) == []
