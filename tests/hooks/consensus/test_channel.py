"""The channel over the job's own store: in this process, in a file, and on another that may go or stand still."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

pytest.importorskip("torch")

from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.events import VERSION, BackgroundEvent, LogEvent, NoticeEvent, WithdrawnEvent
from spotguard.hooks.consensus.failover import EventHandler
from spotguard.hooks.consensus.job_state import JobState
from spotguard.hooks.consensus.stores.connection import JobStore, StoreSilent
from spotguard.hooks.consensus.vote import Decision, Vote, ranges
from spotguard.hooks.ipc import typed_json
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from tests.hooks.consensus.hosts import Host

pytestmark = pytest.mark.torch

#: Seconds after which a wait between threads counts as a deadlock.
PATIENCE = 100.0
NOTICE = NoticeEvent("a", "interruption", "aws", 30.0, "m0", 120.0)
T = TypeVar("T")


def within(seconds: float) -> Callable[[], float]:
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())


class Rank:
    """One end, and what it has heard."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.heard: list[tuple[int, LogEvent, JobState]] = []
        #: Called before it hears.
        self.before: EventHandler | None = None
        self._changed = threading.Condition()
        channel.listen(self._hear)

    def _hear(self, epoch: int, call: LogEvent, standing: JobState) -> None:
        if self.before is not None:
            self.before(epoch, call, standing)
        with self._changed:
            self.heard.append((epoch, call, standing))
            self._changed.notify_all()

    def hears(self, count: int) -> list[LogEvent]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.heard) >= count, PATIENCE)
            return [call for _, call, _ in self.heard]

    def until(self, epoch: int) -> list[tuple[int, LogEvent]]:
        """All that it has heard, once this entry is among it and counts."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(each >= epoch for each, _, _ in self.heard), PATIENCE)
        left = within(PATIENCE)
        while self.channel.standing.epoch < epoch:
            assert left(), self.heard
        with self._changed:
            return [(each, call) for each, call, _ in self.heard]

    def agree(self, epoch: int, step: int | None, seconds: float = PATIENCE, **offer: Any) -> Decision:
        offered = Vote(self.channel.rank, step, **offer)
        return self.channel.agree(epoch, offered, within(seconds), lambda: False)


def together(*acts: Callable[[], T]) -> list[T]:
    """All at once, each on a thread of its own."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(act) for act in acts]]


def join(stores: list[Any], incarnation: str = "life", **how: Any) -> list[Channel]:
    def one(rank: int, store: JobStore) -> Channel:
        return Channel.join(
            store,
            rank,
            len(stores),
            f"m{rank // 2}",
            SystemClock(),
            meet=lambda _: incarnation.encode(),
            **how,
        )

    return together(*(lambda rank=rank, store=store: one(rank, store) for rank, store in enumerate(stores)))


@contextmanager
def a_job(stores: list[Any], incarnation: str = "life") -> Iterator[list[Rank]]:
    ranks = [Rank(channel) for channel in join(stores, incarnation)]
    try:
        yield ranks
    finally:
        together(*(rank.channel.close for rank in ranks))


@pytest.fixture(params=["tcp", "hash", "file"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> list[Any]:
    """The same store, as three ranks see it."""
    if request.param == "hash":
        return [HashStore()] * 3
    if request.param == "file":
        return [FileStore(str(tmp_path / "store"), 3) for _ in range(3)]
    return over_tcp()


def over_tcp(world: int = 3) -> list[Any]:
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    others = [TCPStore("127.0.0.1", host.port, is_master=False) for _ in range(world - 1)]
    return [PrefixStore("job", each) for each in (host, *others)]


def test_all_ranks_hear_the_same_calls_and_obey_one_decision(stores: list[Any]) -> None:
    """Called by all at once; offered by all; decided once; and met before it and after."""
    with a_job(stores) as ranks:
        assert {rank.channel.machines for rank in ranks} == {("m0", "m0", "m1")}
        numbers = together(*(lambda r=r: r.channel.call(NOTICE, within(PATIENCE)) for r in ranks))
        assert sorted(numbers) == [1, 2, 3]
        assert [rank.hears(3) for rank in ranks] == [[NOTICE] * 3] * 3
        assert all(rank.channel.standing.counts(1) for rank in ranks)
        decided = together(*(lambda r=r, s=s: r.agree(1, s) for r, s in zip(ranks, (4, 6, 5), strict=True)))
        assert decided == [Decision(1, 6, "", (0, 1, 2))] * 3
        assert ranks[0].agree(1, 9).step is None  # twice is not asked for
        told = together(
            *(
                lambda r=r: r.channel.meetings.tell(b"\x00\xff" if r.channel.rank == 0 else None, PATIENCE)
                for r in ranks
            )
        )
        assert told == [b"\x00\xff"] * 3
        for turn in range(4):
            values = [bytes([turn, rank]) for rank in range(3)]
            gathered = together(
                *(
                    lambda r=r, v=v: r.channel.meetings.gather(v, PATIENCE)
                    for r, v in zip(ranks, values, strict=True)
                )
            )
            assert gathered == [values] * 3
    assert not any(rank.channel.lost for rank in ranks)


def test_the_next_life_of_a_job_sees_nothing_of_the_last(stores: list[Any]) -> None:
    """A launcher gives both the same store: its log, its bells and its decisions are still there."""
    with a_job(stores, "first") as ranks:
        ranks[0].channel.call(NOTICE, within(PATIENCE))
        for rank in ranks:
            rank.hears(1)
        assert ranks[2].agree(1, None).step is None
    with a_job(stores, "second") as ranks:
        assert ranks[1].channel.call(BackgroundEvent(), within(PATIENCE)) == 1
        assert [rank.hears(1) for rank in ranks] == [[BackgroundEvent(heard=0)]] * 3
        decided = together(*(lambda r=r: r.agree(1, 2) for r in ranks))
        assert [each.step for each in decided] == [2, 2, 2]


def test_a_silent_rank_is_decided_without_and_obeys_when_late() -> None:
    """The decision of the first whose time is over holds for everybody."""
    with a_job(over_tcp()) as ranks:
        ranks[0].channel.call(NOTICE, within(PATIENCE))
        for rank in ranks:
            rank.hears(1)
        early = together(lambda: ranks[0].agree(1, 3, 0.5), lambda: ranks[1].agree(1, 3, PATIENCE))
        assert early[0] == early[1]
        assert early[0].step is None
        assert "no answer in time from rank 2 of 3" in early[0].why
        assert ranks[2].agree(1, 3) == early[0]


def test_replicas_save_without_one_that_is_silent() -> None:
    """And it saves nothing when it comes late."""
    with a_job(over_tcp()) as ranks:
        ranks[0].channel.call(NOTICE, within(PATIENCE))
        for rank in ranks:
            rank.hears(1)
        early = together(*(lambda r=r: r.agree(1, 3, 0.5, covers=ranges((0, 1, 2))) for r in ranks[:2]))
        assert early[0] == early[1]
        assert (early[0].step, early[0].ranks) == (3, (0, 1))
        assert ranks[2].agree(1, 4, covers=ranges((0, 1, 2))) == early[0]


def test_a_call_that_supersedes_ends_the_waiting() -> None:
    """For the others' offers, on every rank."""
    with a_job(over_tcp()) as ranks:
        ranks[0].channel.call(NOTICE, within(PATIENCE))
        for rank in ranks:
            rank.hears(1)
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(rank.agree, 1, 3) for rank in ranks[:2]]
            ranks[2].channel.call(WithdrawnEvent("a"), within(PATIENCE))
            decided = [each.result(PATIENCE) for each in waiting]
        assert [each.step for each in decided] == [None, None]
        ranks[1].channel.call(NoticeEvent("b", "spot", "gcp", 30.0, "m1", 30.0), within(PATIENCE))
        for rank in ranks:
            rank.hears(3)
        again = together(*(lambda r=r: r.agree(3, 5) for r in ranks))
        assert [each.step for each in again] == [5, 5, 5]


def test_a_vote_that_nobody_wants_ends_its_wait() -> None:
    """Training has ended, say."""
    with a_job(over_tcp()) as ranks:
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ranks[0].channel.agree, 1, Vote(0, 3), within(PATIENCE), over.is_set)
            over.set()
            assert waiting.result(PATIENCE).step is None


def test_a_rank_that_misses_a_meeting_is_named() -> None:
    """By all that wait for it."""
    with a_job(over_tcp()) as ranks:
        with pytest.raises(StoreSilent, match="rank 0 of 3"):
            ranks[1].channel.meetings.tell(None, 3.0)
        with pytest.raises(StoreSilent, match="rank 0 of 3"):
            ranks[1].channel.meetings.gather(b"", 3.0)


def test_a_mistake_in_whoever_hears_does_not_stop_the_hearing(caplog: pytest.LogCaptureFixture) -> None:
    """It is the only thread that hears calls."""
    caplog.set_level(logging.CRITICAL, "spotguard")
    heard: list[int] = []
    done = threading.Event()

    def hear(epoch: int, call: LogEvent, standing: JobState) -> None:
        heard.append(epoch)
        if epoch == 2:
            done.set()
        raise ValueError

    (channel,) = join([HashStore()])
    channel.listen(hear)
    for _ in range(2):
        channel.call(BackgroundEvent(), within(PATIENCE))
    assert done.wait(PATIENCE)
    assert heard == [1, 2]
    left = within(PATIENCE)
    while channel.standing.epoch < 2:  # the calls count all the same
        assert left()
    channel.close()


def test_another_version_is_refused_by_name() -> None:
    """Before training, and not when they first misunderstand each other."""
    store = HashStore()
    card = typed_json.encode({"version": VERSION + 1, "machine": "m"}).encode()
    store.set("spotguard/life/gathered/1/1", card.hex())
    before = set(threading.enumerate())
    with pytest.raises(UsageError, match="rank 1 runs another version"):
        Channel.join(cast(JobStore, store), 0, 2, "m", SystemClock(), meet=lambda _: b"life")
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("spotguard")]


def test_when_it_is_closed_no_thread_is_left(stores: list[Any]) -> None:
    """None that waits in the store above all; and a forked child touches nothing."""
    before = set(threading.enumerate())
    with a_job(stores) as ranks:
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {"spotguard-mailbox"}
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("spotguard")]
    ranks[0].channel.close()
    child = Channel(cast(JobStore, HashStore()), 0, 2, "x", SystemClock(), hosts=True)
    child.forget()
    child.close()
    assert not child.failover.closing


def test_the_host_of_the_store_leaves_last() -> None:
    """It waits until all others have left theirs; but not for ever."""
    stores = over_tcp(2)
    first, second = join(stores, hosts=True)
    ended = threading.Event()

    def close() -> None:
        first.close(PATIENCE)
        ended.set()

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    first._clients[0].caller._thread.join(0.3)
    assert not ended.is_set()
    second.close()
    assert ended.wait(PATIENCE)
    alone, other = join(over_tcp(2), hosts=True)
    alone.close(0.1)
    other.close(0.0)


def test_a_host_that_stands_still_and_then_goes_holds_nobody(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks gives up by its own deadline, decides nothing, and can end."""
    caplog.set_level(logging.CRITICAL, "spotguard")
    before = set(threading.enumerate())
    ranks = [Rank(each) for each in join([TCPStore("127.0.0.1", host.port) for _ in range(2)])]
    host.stands_still()
    with pytest.raises(StoreSilent, match="has not answered in time"):
        ranks[0].channel.call(NOTICE, within(0.2))
    decision = ranks[1].agree(1, 3, 0.2)
    assert decision.step is None
    assert "store" in decision.why
    with pytest.raises(StoreSilent):
        ranks[1].channel.meetings.tell(None, 0.2)
    host.dies()
    assert ranks[0].channel._clients[0]._mailbox.close(PATIENCE)
    assert ranks[0].channel.lost
    with pytest.raises(StoreSilent, match="does not answer"):
        ranks[0].channel.call(NOTICE, within(PATIENCE))
    together(*(rank.channel.close for rank in ranks))
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("spotguard")]
    assert all(rank.heard == [] for rank in ranks)
