"""A store that is away while a run begins: the newest checkpoint is waited for, never passed over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotguard.hooks.checkpoint.format.keys import anew_key
from spotguard.hooks.restore.retrying_store import PATIENCE
from spotguard.providers.errors import CorruptError, DeniedError, SpotguardError, StoreError, UnavailableError
from tests.fakes.clock import Impatient
from tests.fakes.store import Fault
from tests.fakes.training import different, guarded, saved_each_step, small, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

TOTAL = 3
#: A manifest, and whether `--begin-anew` was spent, are got.
READS = ("list", "get", "get", "read_into")


def filled() -> WatchedStore:
    """A store with a checkpoint after each step."""
    store = WatchedStore()
    saved_each_step(store, TOTAL)
    return store


def failing(
    store: WatchedStore, at: int, times: int, error: Callable[[], BaseException] | None = None
) -> None:
    """From now on reads number `at` and some after it fail."""
    made = error or (lambda: UnavailableError("gone for now"))
    store.calls.clear()
    store.faults = [Fault(at + n, verbs=READS, error=made) for n in range(times)]


def reads(store: WatchedStore) -> list[str]:
    return [verb for verb, _ in store.calls if verb in READS]


def test_a_restore_lists_gets_and_reads() -> None:
    """What the tests below fail one after the other."""
    store = filled()
    with guarded(store, small().values, clock=Impatient()) as guard:
        failing(store, 0, 0)
        guard.restore()
    assert reads(store) == [*READS, "read_into"]  # weights and moments


@pytest.mark.parametrize("at", range(4), ids=READS)
def test_a_store_that_is_away_for_a_while_costs_a_while(at: int, caplog: pytest.LogCaptureFixture) -> None:
    """At whatever request: the newest is restored, not an older one and not nothing; one line says what happened."""
    store, job, clock = filled(), small(), Impatient()
    with guarded(store, job.values, clock=clock) as guard:
        failing(store, at, 10)
        assert guard.restore() == TOTAL
    assert different(job.bits(), trajectory(small, TOTAL)[TOTAL]) == []
    assert 10 < clock.now < PATIENCE
    said = [record.message for record in caplog.records if "retries" in record.message]
    assert said == ["the store fails, spotguard retries for up to 60 s: gone for now"]
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("at", range(4), ids=READS)
def test_a_store_that_stays_away_begins_nothing(at: int) -> None:
    """The error comes out in one line; no older checkpoint was opened, and the guard refuses to train. When the store
    is back the same guard restores."""
    store, job = filled(), small()
    with guarded(store, job.values, clock=Impatient()) as guard:
        failing(store, at, 1000)
        with pytest.raises(UnavailableError, match=r"^gone for now; .* Nothing older was restored") as raised:
            guard.restore()
        assert "\n" not in str(raised.value)
        opened = [key for verb, key in store.calls if verb != "list" and key != anew_key("run")]
        assert not [key for key in opened if "/000000003-" not in key]
        with pytest.raises(SpotguardError, match=r"guard\.restore\(\)"):
            guard.step()
        store.faults = []
        assert guard.restore() == TOTAL
    assert different(job.bits(), trajectory(small, TOTAL)[TOTAL]) == []


@pytest.mark.parametrize("at", range(4), ids=READS)
def test_a_store_that_refuses_is_not_waited_for(at: int) -> None:
    """Credentials do not come back by themselves, and are no damage either."""
    store, clock = filled(), Impatient()
    with guarded(store, small().values, clock=clock) as guard:
        failing(store, at, 1, lambda: DeniedError("no"))
        with pytest.raises(DeniedError, match=r"^no$"):
            guard.restore()
    assert clock.waits == []
    assert reads(store)[-1] == READS[at]


def test_damage_behind_an_outage_is_damage() -> None:
    """Bytes that are wrong when they come at last, and once more, send to the next older checkpoint, as ever."""
    store, job = filled(), small()
    with guarded(store, job.values, clock=Impatient()) as guard:
        failing(store, 3, 4)
        store.faults += [Fault(at, verbs=READS, error=lambda: CorruptError("too few bytes")) for at in (7, 8)]
        assert guard.restore() == TOTAL - 1
    assert different(job.bits(), trajectory(small, TOTAL - 1)[TOTAL - 1]) == []


@pytest.mark.parametrize("error", [UnavailableError, StoreError])
@pytest.mark.parametrize("verb", ["list", "put_if_absent"])
def test_a_register_waits_too(verb: str, error: type[StoreError]) -> None:
    """A network that comes up later than the job does; what does not heal is said at once."""
    store, job, clock = filled(), small(), Impatient()
    store.calls.clear()
    store.faults = [Fault(n, verbs=(verb,), error=lambda: error("not yet")) for n in range(5)]
    if error is StoreError:
        with pytest.raises(StoreError, match=r"^not yet$"), guarded(store, job.values, clock=clock):
            pass
        assert clock.waits == []
        return
    with guarded(store, job.values, clock=clock) as guard:
        assert guard.restore() == TOTAL


def test_a_register_whose_store_stays_away_says_so() -> None:
    """A job that could never save does not begin."""
    store, job = WatchedStore(), small()
    store.faults = [Fault(n) for n in range(1000)]
    with (
        pytest.raises(
            UnavailableError, match="Training was not started: rerun the command when the store answers"
        ),
        guarded(store, job.values, clock=Impatient()),
    ):
        pass
    assert store.objects == {}


def test_going_back_waits_as_well() -> None:
    """A second restore, in the middle of training: what is in memory stands until the store answers."""
    store, job = filled(), small()

    with guarded(store, job.values, clock=Impatient()) as guard:
        guard.restore()
        job.step(TOTAL)
        before = job.bits()
        failing(store, 0, 1000)
        with pytest.raises(UnavailableError):
            guard.restore(step=2)
        assert different(job.bits(), before) == []
        failing(store, 0, 5)
        assert guard.restore(step=2) == 2
    assert different(job.bits(), trajectory(small, 2)[2]) == []
