"""A store that refuses for some seconds of a save with a deadline."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spotguard.hooks.checkpoint.catalog import find_whole  # noqa: E402
from spotguard.hooks.checkpoint.retention import Keep  # noqa: E402
from spotguard.hooks.checkpoint.tier import Tier  # noqa: E402
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope  # noqa: E402
from spotguard.hooks.commit.plan.write_plan import WriteProgress  # noqa: E402
from spotguard.hooks.commit.upload.retry import RetryPlan, retry_plan  # noqa: E402
from spotguard.hooks.save.checkpointer import Checkpointer  # noqa: E402
from spotguard.hooks.save.request import SavedCheckpoint, SaveSpec  # noqa: E402
from spotguard.hooks.save.shard_writer import ShardWriter  # noqa: E402
from spotguard.hooks.state.state import State  # noqa: E402
from spotguard.providers.errors import (  # noqa: E402
    CorruptError,
    DeniedError,
    FullError,
    MisconfiguredError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from tests.cases import cases  # noqa: E402
from tests.fakes.called import Request  # noqa: E402
from tests.fakes.narrow_store import WatchedClock  # noqa: E402
from tests.fakes.refusing import RefusingStore, as_time_goes_by, for_a_while  # noqa: E402
from tests.fakes.training import small  # noqa: E402
from tests.hooks.commit.writes import NAME, state_tensors  # noqa: E402

pytestmark = pytest.mark.torch

#: Bytes of an object, and how many there are of that size.
OBJECT, COUNT = 64 * 2**10, 6
#: Seconds of the window.
WINDOW = 30.0

AT_ONCE, PAUSE, CREDENTIALS, NEVER = (
    RetryPlan.AT_ONCE,
    RetryPlan.PAUSE,
    RetryPlan.CREDENTIALS,
    RetryPlan.NEVER,
)


def denied() -> StoreError:
    return DeniedError("put x: AccessDenied (403)", "AccessDenied")


@cases(
    "error, near_a_deadline, without_one",
    [
        (DeniedError("", "AccessDenied"), CREDENTIALS, NEVER),
        (DeniedError("", "403"), CREDENTIALS, NEVER),
        (DeniedError("", "EACCES"), CREDENTIALS, NEVER),
        (DeniedError(""), CREDENTIALS, NEVER),
        (DeniedError("", "ExpiredToken"), CREDENTIALS, NEVER),
        (DeniedError("", "RequestTimeTooSkewed"), CREDENTIALS, NEVER),
        (DeniedError("", "AuthenticationFailed"), CREDENTIALS, NEVER),
        (DeniedError("", "authError"), CREDENTIALS, NEVER),
        (StoreError("", "TemporaryRedirect"), PAUSE, NEVER),
        (StoreError("", "307"), PAUSE, NEVER),
        (StoreError("", "302"), PAUSE, NEVER),
        (ThrottledError("", "SlowDown"), PAUSE, PAUSE),
        (UnavailableError(""), PAUSE, PAUSE),
        (CorruptError("", "BadDigest"), AT_ONCE, AT_ONCE),
        (DeniedError("", "EROFS"), NEVER, NEVER),
        (MisconfiguredError("certificate verify failed"), NEVER, NEVER),
        (DeniedError("", "BlobImmutableDueToPolicy"), NEVER, NEVER),
        (NotFoundError("", "NoSuchBucket"), NEVER, NEVER),
        (FullError("", "QuotaExceeded"), NEVER, NEVER),
        (StoreError("", "PermanentRedirect"), NEVER, NEVER),
        (StoreError("", "400"), NEVER, NEVER),
    ],
)
def test_each_cause_has_one_plan(
    error: StoreError, near_a_deadline: RetryPlan, without_one: RetryPlan
) -> None:
    assert retry_plan(error, hurried=True) is near_a_deadline
    assert retry_plan(error, hurried=False) is without_one


def busy(writer: ShardWriter) -> list[int]:
    """The threads that upload now."""
    pools = writer.uploads.pool, writer.uploads.request_pool
    workers = [worker for pool in pools for worker in pool.workers if not worker.free]
    return [worker._thread.ident or 0 for worker in workers]


class Refused:
    """A save of some objects to a store that refuses."""

    def __init__(
        self, clock: WatchedClock, store: RefusingStore, count: int = COUNT, rank: int = 0, world: int = 1
    ) -> None:
        self.clock, self.store = clock, store
        self.writer = ShardWriter(store, "run", rank, world)
        self.writer.uploads.width.object_bytes = OBJECT
        self.state_tensors = state_tensors(
            **{f"t{n}": torch.full((OBJECT // 5,), float(n)) for n in range(count)}
        )
        self.write_progress = WriteProgress(self.writer.plans.of(self.state_tensors))
        self.writer.uploads.warm(OBJECT)

    def save(self, seconds: float | None = WINDOW) -> None:
        now = self.clock.monotonic()
        scope = CancelScope(self.clock, None if seconds is None else now + seconds)
        self.writer.write(self.state_tensors, NAME, scope, write_progress=self.write_progress)

    def run(self, seconds: float | None = WINDOW) -> None:
        as_time_goes_by(self.clock, lambda: self.save(seconds), busy=lambda: busy(self.writer))

    @property
    def objects(self) -> int:
        return len(self.write_progress.write_plan.objects)

    @property
    def stored(self) -> int:
        """Objects in the store."""
        return sum(key.endswith(".safetensors") for key in self.store.below.objects)


@pytest.fixture
def saving() -> Iterator[Callable[..., Refused]]:
    with ExitStack() as stack:

        def make(store: RefusingStore, clock: WatchedClock, *args: int) -> Refused:
            made = Refused(clock, store, *args)
            stack.callback(made.writer.close)
            return made

        yield make


def most_a_second(times: list[float]) -> int:
    """Return the most requests that began within one second."""
    return max((sum(at <= other < at + 0.999 for other in times) for at in times), default=0)


@pytest.mark.parametrize("seconds", [1.0, 5.0, 20.0])
@pytest.mark.parametrize(("parallel", "count"), [(1, COUNT), (4, COUNT), (4, 2)], ids=["one", "four", "idle"])
def test_a_save_outlasts_a_refusal(
    saving: Callable[..., Refused],
    seconds: float,
    parallel: int,
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store is asked once a second at most, and an object that was refused is sent once more."""
    clock = WatchedClock()
    store = RefusingStore(clock, for_a_while(clock, seconds, denied), parallel=parallel)
    one = saving(store, clock, count)
    one.run()
    assert one.stored == one.objects
    assert seconds <= clock.monotonic() < WINDOW
    first = [at for at, key in store.refused if key.endswith(".safetensors")]
    assert set(first) == {0.0}, "no object is sent to a store that is known to refuse"
    assert len(first) <= parallel
    assert len(store.puts()) == one.objects + len(first)
    assert most_a_second([at for at, _ in store.refused if at > 0.0]) <= 1
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "the store refuses this save" in line
    assert "AccessDenied (403)" in line


def test_a_refusal_from_the_middle_of_a_save_costs_no_stored_object(saving: Callable[..., Refused]) -> None:
    clock = WatchedClock()
    until = [0.0]

    def refusal(request: Request) -> StoreError | None:
        if len(store.puts()) == 4 and not until[0]:
            until[0] = clock.monotonic() + 5.0
        return denied() if clock.monotonic() < until[0] else None

    store = RefusingStore(clock, refusal, parallel=1)
    one = saving(store, clock)
    one.run()
    assert one.stored == one.objects
    assert len(store.puts()) == one.objects + 1


@pytest.mark.parametrize("at", ["weights", "moments", "manifest"])
def test_a_refusal_costs_no_moments(at: str) -> None:
    """An emergency save of everything, refused for five seconds from one of its requests on."""
    clock, until = WatchedClock(), [0.0]

    def refusal(request: Request) -> StoreError | None:
        number = {"weights": 1, "moments": moments, "manifest": None}[at]
        begun = request.key.endswith("-of-00001.json") if number is None else len(store.puts()) == number
        if begun and not until[0]:
            until[0] = clock.monotonic() + 5.0
        return denied() if clock.monotonic() < until[0] else None

    store, job = RefusingStore(clock, refusal), small(width=8192)
    state = State(job.values, lambda buffer: None, clock)
    checkpointer = Checkpointer(store, "run", 1, clock=clock, keep=Keep(1), world=1)
    writer = checkpointer._writer
    writer.uploads.width.object_bytes = OBJECT
    job.step(0)
    state.at_boundary()
    tiers = [planned.tier for planned in writer.plans.of(state.collect().state_tensors).objects]
    moments = tiers.index(Tier.MOMENTS) + 1
    saved: list[SavedCheckpoint | None] = []
    scope = CancelScope(clock, WINDOW)
    as_time_goes_by(
        clock,
        lambda: saved.append(checkpointer.save(state, SaveSpec(1), "emergency", scope)),
        busy=lambda: busy(writer),
    )
    checkpointer.close()
    state.close()
    assert saved[0] is not None
    assert saved[0].level == "full"
    assert 5.0 <= saved[0].seconds < WINDOW
    whole = find_whole(store.below, "run")
    assert whole is not None
    assert whole.level == "full"


def test_a_token_renewed_during_the_save_is_used(saving: Callable[..., Refused]) -> None:
    """The chain has none for three seconds, and is asked again."""
    clock, renewed = WatchedClock(), []

    def renew() -> None:
        if clock.monotonic() >= 3.0:
            renewed.append(clock.monotonic())

    def refusal(request: Request) -> StoreError | None:
        return None if renewed else DeniedError("put x: ExpiredToken (400)", "ExpiredToken")

    one = saving(RefusingStore(clock, refusal, renew=renew), clock)
    one.run()
    assert one.stored == one.objects
    assert renewed[0] >= 3.0


def test_a_chain_that_hangs_delays_no_request(saving: Callable[..., Refused]) -> None:
    """The permission comes back without other credentials."""
    clock, over = WatchedClock(), threading.Event()
    store = RefusingStore(clock, for_a_while(clock, 5.0, denied), renew=lambda: over.wait(100.0))
    one = saving(store, clock)
    one.run()
    over.set()
    assert one.stored == one.objects


def test_a_chain_that_hangs_is_asked_again(saving: Callable[..., Refused]) -> None:
    """The first answer never comes, and the credentials are there a while later."""
    clock, over, asked = WatchedClock(), threading.Event(), list[float]()

    def renew() -> None:
        asked.append(clock.monotonic())
        if len(asked) == 1:
            over.wait(100.0)

    one = saving(
        RefusingStore(clock, lambda request: denied() if len(asked) < 2 else None, renew=renew), clock
    )
    one.run()
    over.set()
    assert one.stored == one.objects


def test_a_temporary_redirect_is_sent_again(saving: Callable[..., Refused]) -> None:
    """After a pause, by the same thread: nobody else stops."""
    clock, said = WatchedClock(), [StoreError("put x: 307 (307)", "307")]
    store = RefusingStore(clock, lambda request: said.pop() if said else None)
    one = saving(store, clock)
    one.run()
    assert one.stored == one.objects
    assert len(store.requests) == one.objects + 1


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("put x: NoSuchBucket (404)", "NoSuchBucket"),
        FullError("put x: QuotaExceeded (403)", "QuotaExceeded"),
        DeniedError("put x: Read-only file system", "EROFS"),
        MisconfiguredError("put x: certificate verify failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_settled_answer_ends_a_save_at_once(saving: Callable[..., Refused], error: StoreError) -> None:
    clock = WatchedClock()
    store = RefusingStore(clock, lambda request: error)
    one = saving(store, clock)
    with pytest.raises(type(error)):
        one.run()
    assert clock.monotonic() == 0.0
    assert not store.below.objects


def test_a_bucket_that_is_deleted_while_a_save_waits_ends_it(saving: Callable[..., Refused]) -> None:
    clock = WatchedClock()
    gone = NotFoundError("put x: NoSuchBucket (404)", "NoSuchBucket")
    store = RefusingStore(clock, lambda request: denied() if clock.monotonic() < 4.0 else gone)
    one = saving(store, clock)
    with pytest.raises(NotFoundError):
        one.run()
    assert clock.monotonic() < 10.0
    assert not store.below.objects


def test_the_deadline_ends_the_wait_for_a_store_that_refuses(saving: Callable[..., Refused]) -> None:
    """All threads are free again, and the reason has the service's words."""
    clock = WatchedClock()
    store = RefusingStore(clock, lambda request: denied())
    one = saving(store, clock)
    with pytest.raises(Abandoned, match=r"out of time.*AccessDenied \(403\)"):
        one.run()
    assert clock.monotonic() == pytest.approx(WINDOW, abs=0.5)
    assert all(worker.returns(100.0) for worker in one.writer.uploads.pool.workers)
    assert not store.below.objects


def test_a_withdrawn_notice_ends_the_wait_at_once(saving: Callable[..., Refused]) -> None:
    clock = WatchedClock()
    scope = CancelScope(clock, WINDOW)

    def refusal(request: Request) -> StoreError:
        if clock.monotonic() > 4.0:
            scope.abandon("the notice was withdrawn")
        return denied()

    one = saving(RefusingStore(clock, refusal), clock)
    with pytest.raises(Abandoned, match="withdrawn"):
        as_time_goes_by(
            clock, lambda: one.writer.write(one.state_tensors, NAME, scope), busy=lambda: busy(one.writer)
        )
    assert clock.monotonic() < 10.0
    assert not one.stored


def test_a_save_without_a_deadline_ends_with_the_refusal(saving: Callable[..., Refused]) -> None:
    clock = WatchedClock()
    store = RefusingStore(clock, for_a_while(clock, 1.0, denied), parallel=1)
    one = saving(store, clock)
    with pytest.raises(DeniedError):
        one.run(None)
    assert clock.monotonic() == 0.0
    assert len(store.requests) == 1
    assert not store.below.objects


def test_a_local_copy_that_is_refused_ends_at_once(saving: Callable[..., Refused]) -> None:
    """Training stands still meanwhile, and the copy in memory takes its place."""
    clock = WatchedClock()
    one = saving(RefusingStore(clock, lambda request: None), clock)
    disk = RefusingStore(clock, lambda request: DeniedError("put x: Permission denied", "EACCES"))
    stage = one.writer.beside(disk)
    stage.plans.adopt(one.write_progress.write_plan)
    scope = CancelScope(clock, WINDOW)
    with pytest.raises(DeniedError):
        as_time_goes_by(clock, lambda: stage.write(one.state_tensors, NAME, scope), busy=lambda: busy(stage))
    assert clock.monotonic() == 0.0
    assert not disk.below.objects


def test_the_save_after_one_that_was_refused_asks_at_once(saving: Callable[..., Refused]) -> None:
    clock = WatchedClock()
    store = RefusingStore(clock, for_a_while(clock, WINDOW, denied), parallel=1)
    one = saving(store, clock)
    with pytest.raises(Abandoned):
        one.run()
    one.run()
    assert WINDOW <= clock.monotonic() < WINDOW + 0.5
    assert one.stored == one.objects


def test_an_object_is_the_test_of_a_store_that_only_takes_small_ones(saving: Callable[..., Refused]) -> None:
    """It takes the smallest request, and refuses objects: one is sent each time, and no more."""
    clock = WatchedClock()

    def refusal(request: Request) -> StoreError | None:
        return denied() if clock.monotonic() < 12.0 and request.key.endswith(".safetensors") else None

    store = RefusingStore(clock, refusal)
    one = saving(store, clock)
    one.run()
    assert one.stored == one.objects
    later = [at for at, _ in store.refused if at > 3.0]
    assert later
    assert most_a_second(later) == 1


def test_another_failure_ends_the_wait(saving: Callable[..., Refused]) -> None:
    """One thread waits for a store that refuses it, and another hears that the store is full."""
    clock, never = WatchedClock(), threading.Event()

    def refusal(request: Request) -> StoreError | None:
        if request.key.endswith("/0000.safetensors"):
            while not store.refused:
                clock.wait(never, 0.1)
            return FullError("full")
        while len(store.requests) < 2:
            clock.wait(never, 0.1)
        return denied()

    store = RefusingStore(clock, refusal, parallel=2)
    one = saving(store, clock, 2)
    with pytest.raises(FullError):
        one.run()
    assert clock.monotonic() < 5.0
    assert not store.below.objects


def test_a_store_that_goes_away_while_it_refuses_is_looked_at(saving: Callable[..., Refused]) -> None:
    """It may have lost what it had stored before."""
    clock = WatchedClock()

    def refusal(request: Request) -> StoreError | None:
        if len(store.puts()) <= 3 or clock.monotonic() > 6.0:
            return None
        if clock.monotonic() < 3.0:
            return denied()
        store.below.objects.clear()
        return UnavailableError("away")

    store = RefusingStore(clock, refusal, parallel=1)
    one = saving(store, clock)
    one.run()
    assert one.stored == one.objects


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_of_one_machine_ask_in_turn(
    saving: Callable[..., Refused], ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request a second, and what one rank hears is enough for all."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    clock = WatchedClock()
    refusal = for_a_while(clock, 10.0, denied)
    stores = [RefusingStore(clock, refusal, parallel=1) for _ in range(ranks)]
    all_of_them = [saving(store, clock, COUNT, rank, ranks) for rank, store in enumerate(stores)]
    as_time_goes_by(
        clock,
        *(one.save for one in all_of_them),
        busy=lambda: [thread for one in all_of_them for thread in busy(one.writer)],
    )
    assert all(one.stored == one.objects for one in all_of_them)
    assert most_a_second([at for store in stores for at, _ in store.refused if at > 0.0]) == 1
    assert clock.monotonic() < 14.0, "the others go on when one of them is answered"
    for one in all_of_them:
        one.writer.close()
    assert not list(tmp_path.iterdir())


def test_ranks_without_a_common_directory_each_ask(
    saving: Callable[..., Refused], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    clock = WatchedClock()
    store = RefusingStore(clock, for_a_while(clock, 5.0, denied))
    one = saving(store, clock, COUNT, 0, 2)
    one.run()
    assert one.stored == one.objects
