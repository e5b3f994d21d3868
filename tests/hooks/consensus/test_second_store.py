"""The job's own store goes, stands still, or is cut off from some ranks: the ranks agree through the second one."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from spotguard.hooks.consensus import protocol
from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.events import (
    BackgroundEvent,
    BoundaryEvent,
    CarriedEvent,
    LogEvent,
    NoticeEvent,
    RevoteEvent,
    WithdrawnEvent,
)
from spotguard.hooks.consensus.failover import SECOND_STORE, Failover, side
from spotguard.hooks.consensus.job_state import JobState, WantedSave
from spotguard.hooks.consensus.stores import second
from spotguard.hooks.consensus.stores.connection import JobStore, StoreSilent
from spotguard.hooks.consensus.stores.second import BesideStore, second_rank
from spotguard.hooks.consensus.stores.store_client import StoreClient
from spotguard.hooks.consensus.vote import Decision, Vote, ranges
from spotguard.providers.clock import SystemClock
from tests.hooks.consensus.hosts import Host
from tests.hooks.consensus.test_channel import NOTICE, PATIENCE, Rank, together, within

pytestmark = pytest.mark.torch

#: All of the state is on each rank.
ALL = ranges((0, 1, 2))
OTHER = NoticeEvent("b", "interruption", "aws", 30.0, "m1", 120.0)


class Away:
    """A rank's way to a store that breaks, though the store and the others' ways stand."""

    def __init__(self, store: Any, cut: threading.Event | None = None) -> None:
        self._store = store
        self.cut = cut or threading.Event()

    def __getattr__(self, name: str) -> Any:
        if self.cut.is_set():
            raise RuntimeError("Connection reset by peer")
        return getattr(self._store, name)

    def clone(self) -> Away:
        return Away(self._store.clone(), self.cut)

    def wait(self, keys: list[str], timeout: Any) -> None:
        while not self.cut.is_set():
            if self._store.check(keys):
                return
            self.cut.wait(0.01)
        raise RuntimeError("Connection reset by peer")


class Deaf(Away):
    """A rank's way to a store whose mailbox's connection breaks. The others stand."""

    def __getattr__(self, name: str) -> Any:
        if threading.current_thread().name == "spotguard-mailbox":
            return super().__getattr__(name)
        return getattr(self._store, name)

    def clone(self) -> Deaf:
        return Deaf(self._store.clone(), self.cut)


class Job:
    """Three ranks on two machines. With `hosts`, the process that serves the store counts as the first rank's."""

    def __init__(self, host: Host, cut: int | None = None, **how: Any) -> None:
        self.host = host
        stores: list[Any] = [TCPStore("127.0.0.1", host.port) for _ in range(3)]
        makers = [how.get("maker", BesideStore)(store, 3) for store in stores]
        self.cut = threading.Event()
        if cut is not None:
            stores[cut] = how.get("way", Away)(stores[cut], self.cut)
        self.hosts = bool(how.get("hosts"))
        self.channels = together(*(lambda r=r: self._join(r, stores[r], makers[r]) for r in range(3)))
        self.ranks = [Rank(channel) for channel in self.channels]

    def _join(self, rank: int, store: JobStore, maker: BesideStore) -> Channel:
        return Channel.join(
            store,
            rank,
            3,
            f"m{rank // 2}",
            SystemClock(),
            meet=lambda _: b"life",
            hosts=self.hosts and rank == 0,
            second=maker,
        )

    def called(self) -> int:
        """A notice that all ranks read in the first store's log; its epoch."""
        epoch = self.channels[0].call(NOTICE, within(PATIENCE))
        for rank in self.ranks:
            rank.hears(1)
        return epoch

    def agree(
        self, epoch: int, steps: tuple[int, ...], *, among: tuple[int, ...] = (0, 1, 2)
    ) -> list[Decision]:
        ranks = [self.ranks[rank] for rank in among]
        seconds = PATIENCE if len(among) == 3 else 1.0
        return together(
            *(
                lambda r=r, s=s: r.agree(epoch, s, seconds, covers=ALL)
                for r, s in zip(ranks, steps, strict=True)
            )
        )

    def close(self) -> None:
        together(*(lambda c=c: c.close(0.1) for c in self.channels))


@contextmanager
def a_job(host: Host, cut: int | None = None, **how: Any) -> Iterator[Job]:
    before = set(threading.enumerate())
    job = Job(host, cut, **how)
    try:
        yield job
    finally:
        job.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("spotguard"):
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread


def until(there: Callable[[], bool]) -> None:
    nothing, left = threading.Event(), within(PATIENCE)
    while not there():
        assert left(), "it did not come"
        nothing.wait(0.01)


def test_the_second_store_is_on_another_machine_if_there_is_one() -> None:
    assert second_rank(["a", "a", "b", "c"]) == 2
    assert second_rank(["a", "a", "a"]) == 1


def test_ranks_whose_store_has_gone_call_and_agree_in_the_second_one(host: Host) -> None:
    """Its numbers are above all of the first. A notice that all have saved for stands on."""
    with a_job(host) as job:
        assert {each.step for each in job.agree(job.called(), (4, 5, 5))} == {5}
        host.dies()
        epoch = job.channels[2].call(OTHER, within(PATIENCE))
        assert epoch > SECOND_STORE
        for rank in job.ranks:
            assert [each for _, each in rank.until(epoch) if not isinstance(each, CarriedEvent)] == [
                NOTICE,
                OTHER,
            ]
        assert [each.standing.departing for each in job.channels] == [{"m0", "m1"}] * 3
        assert {each.step for each in job.agree(epoch, (5, 5, 5))} == {5}
        assert not any(each.lost for each in job.channels)
        assert side(epoch) == 1


def test_replicas_save_without_the_rank_that_served_the_store(host: Host) -> None:
    """It is one that has not voted, as any other."""
    with a_job(host) as job:
        host.dies()
        epoch = job.channels[1].call(NOTICE, within(PATIENCE))
        for rank in job.ranks[1:]:
            rank.hears(1)
        decided = job.agree(epoch, (7, 7), among=(1, 2))
        assert decided[0] == decided[1]
        assert (decided[0].step, decided[0].ranks) == (7, (1, 2))
        late = job.ranks[0].agree(epoch, 7, covers=ALL)
        assert late == decided[0]  # and no other decision, though it lives


def test_a_notice_whose_votes_went_with_the_store_is_voted_on_again_once(host: Host) -> None:
    """Three ranks find out at once. Nobody reports that nothing is saved: a later call has replaced it."""
    with a_job(host) as job:
        epoch = job.called()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(job.ranks[rank].agree, epoch, 3) for rank in (0, 1)]
            host.dies()
            decided = [each.result(PATIENCE) for each in waiting]
        assert {each.why for each in decided} == {"a later call has replaced this save"}
        for rank in job.ranks:
            heard = rank.until(SECOND_STORE + 2)
            assert [type(each) for _, each in heard] == [NoticeEvent, CarriedEvent, RevoteEvent]
        assert {each.step for each in job.agree(SECOND_STORE + 2, (3, 3, 3))} == {3}


def test_a_decided_save_goes_on_though_its_store_is_gone(host: Host) -> None:
    """It needs no store any more, and nobody votes again."""
    with a_job(host) as job:
        job.agree(job.called(), (4, 4, 4))
        host.dies()
        for channel in job.channels:
            assert channel._clients[0]._mailbox.close(PATIENCE)
        for rank in job.ranks:
            assert [type(each) for _, each in rank.until(SECOND_STORE + 1)] == [NoticeEvent, CarriedEvent]
        assert [channel.standing.counts(1) for channel in job.channels] == [True] * 3
        assert [channel.standing.epoch for channel in job.channels] == [SECOND_STORE + 1] * 3


def test_a_store_that_stands_still_is_left_by_all_ranks_and_what_it_says_later_counts_for_nobody(
    host: Host,
) -> None:
    with a_job(host) as job:
        with host.stopped():
            assert job.channels[0].call(NOTICE, within(PATIENCE)) == SECOND_STORE + 2
            for rank in job.ranks:
                rank.until(SECOND_STORE + 2)
        first = job.channels[1]._clients[0]
        assert first.caller.say(protocol.call(first.keys, "late", 0), within(PATIENCE)) >= 1
        for channel in job.channels:
            until(lambda channel=channel: channel._clients[0].heard >= 1)  # type: ignore[misc]
        assert {each.step for each in job.agree(SECOND_STORE + 2, (2, 2, 2))} == {2}
        assert [[epoch for epoch, _, _ in rank.heard] for rank in job.ranks] == [
            [SECOND_STORE + 1, SECOND_STORE + 2]
        ] * 3
        assert job.channels[1].agree(1, Vote(1, 2), within(PATIENCE), lambda: False).step is None


def test_all_ranks_follow_the_one_that_is_cut_off_from_the_first_store(host: Host) -> None:
    """A save that waits for its vote in the first store ends, and nobody votes there any more."""
    with a_job(host, cut=2) as job:
        epoch = job.called()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(job.ranks[rank].agree, epoch, 3) for rank in (0, 1)]
            job.cut.set()
            decided = [each.result(PATIENCE) for each in waiting]
        assert [each.step for each in decided] == [None, None]
        for rank in job.ranks:
            rank.until(SECOND_STORE + 2)
        assert {each.step for each in job.agree(SECOND_STORE + 2, (3, 3, 3))} == {3}
        assert job.channels[0].call(OTHER, within(PATIENCE)) == SECOND_STORE + 3


def test_an_event_written_to_an_abandoned_store_is_published_again(host: Host) -> None:
    """It had not read it there itself."""
    with a_job(host) as job:
        first = job.channels[0]
        heard, goes_on = threading.Event(), threading.Event()

        def held(epoch: int, call: LogEvent, standing: JobState) -> None:
            heard.set()
            assert goes_on.wait(PATIENCE)

        job.ranks[0].before = held  # its first store's mailbox reads nothing more
        job.channels[1].call(NOTICE, within(PATIENCE))
        assert heard.wait(PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(first.call, OTHER, within(PATIENCE))
            until(lambda: bool(first._clients[0].store.check([first._keys.call(2)])))
            job.channels[1]._clients[0].gone = True  # as it seems to that one
            third = replace(OTHER, id="c")
            assert job.channels[1].call(third, within(PATIENCE)) > SECOND_STORE
            until(lambda: first._clients[1].heard > SECOND_STORE)
            job.ranks[0].before = None
            goes_on.set()
            written.result(PATIENCE)
        for rank in job.ranks:
            until(lambda rank=rank: {"b", "c"} <= {n.id for n in rank.channel.standing.notices})  # type: ignore[misc]
        until(lambda: len({each.standing for each in job.channels}) == 1)
        assert job.channels[0].standing.epoch > SECOND_STORE


def test_a_state_that_has_moved_is_saved_again_though_the_store_of_its_save_is_gone(host: Host) -> None:
    """The save counts in the second store, too."""
    with a_job(host) as job:
        epoch = job.called()
        job.agree(epoch, (4, 4, 4))
        host.dies()
        again = job.channels[1].call(BoundaryEvent(epoch), within(PATIENCE))
        for rank in job.ranks:
            rank.until(again)
            assert rank.channel.standing.wanted == WantedSave(again, "notice", boundary=True)
        assert {each.step for each in job.agree(again, (5, 5, 5))} == {5}


class Broken(BesideStore):
    """A second store whose ways break at once."""

    cut = threading.Event()

    def reach(self, place: str) -> Any:
        return Away(super().reach(place), self.cut)


def test_the_loss_of_the_second_store_changes_nothing_but_what_may_be_lost_next(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The first rank warns, once, when it next calls for a checkpoint: training continues. The ranks call and agree as before."""
    Broken.cut = threading.Event()

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]

    with a_job(host, maker=Broken) as job:
        Broken.cut.set()
        until(lambda: all(channel._clients[1].gone for channel in job.channels))
        assert job.channels[1].call(NOTICE, within(PATIENCE)) == 1
        for rank in job.ranks:
            rank.hears(1)
        assert {each.step for each in job.agree(1, (2, 2, 2))} == {2}
        job.channels[1].call(BackgroundEvent(), within(PATIENCE))
        assert warnings() == []
        for _ in range(2):
            job.channels[0].call(BackgroundEvent(), within(PATIENCE))
    assert len(warnings()) == 1
    assert "the second store is gone: rank 2 has ended, or cannot be reached" in warnings()[0]


class Unreachable(BesideStore):
    """A firewall before one rank."""

    count = 0

    def reach(self, place: str) -> JobStore | None:
        if self._served is not None:
            return super().reach(place)
        Unreachable.count += 1
        return super().reach("127.0.0.1 1" if Unreachable.count == 1 else place)


def test_no_rank_uses_a_second_store_that_one_cannot_reach(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """All have the job's own store alone, and the first rank says so once."""
    caplog.set_level(logging.INFO, "spotguard")
    Unreachable.count = 0
    with a_job(host, maker=Unreachable) as job:
        assert [len(channel._clients) for channel in job.channels] == [1, 1, 1]
        host.dies()
        with pytest.raises(StoreSilent):
            job.channels[2].call(NOTICE, within(1.0))
        assert {each.lost for each in job.channels if each._clients[0]._mailbox.close(PATIENCE)} == {True}
    said = [each.getMessage() for each in caplog.records if "there is no second store" in each.getMessage()]
    assert len(said) == 1
    assert "cannot reach 127.0.0.1 " in said[0]


def test_the_second_store_listens_where_its_process_reaches_the_first_and_nowhere_else(host: Host) -> None:
    made = BesideStore(TCPStore("127.0.0.1", host.port), 3)
    address, port = made.serve().split()
    assert address == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", int(port)), 1.0):
        pass
    assert made.reach(f"{address} {port}") is not None
    assert BesideStore(TCPStore("127.0.0.1", host.port), 3).reach(f"{address} {port}") is not None


def types(heard: list[tuple[int, LogEvent]]) -> list[str]:
    return [type(each).__name__ for _, each in heard if not isinstance(each, (CarriedEvent, RevoteEvent))]


def test_a_notice_whose_withdrawal_comes_first_in_the_second_store_does_not_come_back(host: Host) -> None:
    """Its votes were lost, so the ranks that leave the first store would have called for it again."""
    with a_job(host) as job:
        epoch = job.called()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(job.ranks[rank].agree, epoch, 3) for rank in (0, 1)]
            with host.stopped():
                over = job.channels[2].call(WithdrawnEvent(NOTICE.id), within(PATIENCE))
                assert [each.result(PATIENCE).step for each in waiting] == [None, None]
            last = job.channels[1].call(OTHER, within(PATIENCE))
        for rank in job.ranks:
            assert types(rank.until(last)) == ["NoticeEvent", "WithdrawnEvent", "NoticeEvent"]
            assert rank.channel.standing.notices == (OTHER,)
        assert over > SECOND_STORE


def test_a_withdrawal_that_only_its_caller_has_read_in_the_first_store_is_carried(host: Host) -> None:
    with a_job(host) as job:
        job.called()
        goes_on = threading.Event()

        def held(epoch: int, call: LogEvent, standing: JobState) -> None:
            assert goes_on.wait(PATIENCE)

        for rank in job.ranks[1:]:
            rank.before = held
        job.channels[0].call(WithdrawnEvent(NOTICE.id), within(PATIENCE))
        assert job.ranks[0].hears(2)
        with host.stopped():
            with ThreadPoolExecutor(1) as pool:
                called = pool.submit(job.channels[0].call, OTHER, within(PATIENCE))
                epoch = called.result(PATIENCE)
            goes_on.set()
            for rank in job.ranks:
                rank.until(epoch)
                assert rank.channel.standing.notices == (OTHER,)


def test_a_notice_that_only_some_ranks_have_read_in_the_first_store_stands_for_all_in_the_second(
    host: Host,
) -> None:
    """The one that writes there first has not read it. It asks for the votes of all."""
    with a_job(host) as job:
        job.called()
        with host.stopped():
            job.channels[2].failover.standing = JobState()  # as if it had read nothing
            job.channels[2].failover._ends.clear()
            job.channels[2].call(WithdrawnEvent("nothing"), within(PATIENCE))
            for rank in job.ranks:
                rank.until(SECOND_STORE + 3)
                until(lambda rank=rank: rank.channel.standing.departing == {"m0"})  # type: ignore[misc]
        (epoch,) = {each.standing.wanted.epoch for each in job.channels if each.standing.wanted is not None}
        assert {each.step for each in job.agree(epoch, (3, 3, 3))} == {3}


def test_a_machine_whose_save_was_decided_departs_in_the_second_store_too(host: Host) -> None:
    """The next notice comes there because the first store stands still."""
    with a_job(host) as job:
        job.agree(job.called(), (4, 5, 5))
        with host.stopped():
            epoch = job.channels[2].call(OTHER, within(PATIENCE))
            for rank in job.ranks:
                rank.until(epoch)
        for channel in job.channels:
            assert channel.standing.departing == {"m0", "m1"}
            assert channel.standing.notices[0].seconds_left < NOTICE.seconds_left


def test_a_call_whose_store_dies_before_anyone_has_read_it_comes_by_the_second_one(host: Host) -> None:
    with a_job(host) as job:
        caller = job.channels[1]
        first = caller._clients[0]
        say = first.caller.say

        def answered(*args: Any, **how: Any) -> Any:
            number = say(*args, **how)
            host.dies()
            until(lambda: first.gone)
            return number

        first.caller.say = answered  # type: ignore[method-assign]
        assert caller.call(OTHER, within(PATIENCE)) > SECOND_STORE
        for rank in job.ranks:
            until(lambda rank=rank: OTHER.id in {each.id for each in rank.channel.standing.notices})  # type: ignore[misc]


def test_a_call_that_a_store_has_taken_and_nobody_reads_comes_by_the_second_one(host: Host) -> None:
    """The store stands still right after its answer."""
    with a_job(host) as job:
        first = job.channels[1]._clients[0]
        first.caller.say = lambda *_: 1  # type: ignore[method-assign, assignment]
        assert job.channels[1].call(NOTICE, within(PATIENCE)) == SECOND_STORE + 2
        del first.caller.say
        for rank in job.ranks:
            assert types(rank.until(SECOND_STORE + 2)) == ["NoticeEvent"]


def test_a_rank_that_is_deaf_to_the_first_store_takes_all_with_it(host: Host) -> None:
    """A notice that is called where it hears nothing would wait for its vote."""
    with a_job(host, cut=2) as job:
        job.cut.set()
        for rank in job.ranks:
            rank.until(SECOND_STORE + 1)
        epoch = job.channels[0].call(NOTICE, within(PATIENCE))
        for rank in job.ranks:
            rank.until(epoch)
        assert {each.step for each in job.agree(epoch, (3, 3, 3))} == {3}


def test_a_thread_calls_while_its_rank_hears(host: Host) -> None:
    """No lock is held over what hears an event: it may wait for a thread that calls."""
    with a_job(host) as job, ThreadPoolExecutor(1) as pool:
        first, numbers = job.ranks[0], list[int]()

        def held(epoch: int, call: LogEvent, standing: JobState) -> None:
            first.before = None
            numbers.append(pool.submit(first.channel.call, OTHER, within(PATIENCE)).result(PATIENCE))

        first.before = held
        host.dies()
        job.channels[1].call(NOTICE, within(PATIENCE))
        for channel in job.channels:
            until(lambda channel=channel: {each.id for each in channel.standing.notices} == {"a", "b"})  # type: ignore[misc]
        assert len(numbers) == 1
        assert numbers[0] > SECOND_STORE


def test_a_call_that_its_caller_is_just_reading_is_not_carried_beside_it(host: Host) -> None:
    """The job state, which is carried next, has it."""
    with a_job(host) as job, ThreadPoolExecutor(1) as pool:
        first, told = job.ranks[0], threading.Event()

        def carries(epoch: int, call: LogEvent, standing: JobState) -> None:
            first.before = None
            assert told.wait(PATIENCE)
            failover = first.channel.failover
            until(lambda: bool(failover._unread) or called.done())
            failover.carry_before(failover.last)

        first.before = carries
        called = pool.submit(first.channel.call, BackgroundEvent("once"), within(PATIENCE))
        told.set()
        called.result(PATIENCE)
        first.until(SECOND_STORE + 1)  # the state that it has carried: all leave the first store
        job.channels[1].call(
            OTHER, within(PATIENCE)
        )  # in the first store, which it may not have left, or in the second
        until(lambda: first.channel.standing.departing == {"m1"})
        calls = [call for _, call, _ in first.heard]
        assert sum(isinstance(call, BackgroundEvent) for call in calls) == 1


def test_an_entry_that_cannot_be_taken_in_leaves_none_behind() -> None:
    """The thread of the other log has left its entry to this one."""

    class Ends(BaseException):
        pass

    store: Any = HashStore()
    failover = Failover(StoreClient(store, protocol.Keys("x", 1), SystemClock()), 0, SystemClock())
    entries = [protocol.LogEntry(number, failover.entry(NOTICE).encode()) for number in (1, 2, 3)]
    heard = list[int]()

    def hear(epoch: int, call: LogEvent, standing: JobState) -> None:
        heard.append(epoch)
        if epoch == 1:
            failover.receive(0, hear, entries[1])
            raise Ends

    with pytest.raises(Ends):
        failover.receive(0, hear, entries[0])
    assert heard == [1, 2]
    failover.receive(0, hear, entries[2])
    assert heard == [1, 2, 3]


def test_the_host_of_the_second_store_waits_for_no_rank_that_has_gone_with_the_first(host: Host) -> None:
    """It waits for every other one, or that one's process might abort."""
    with a_job(host, hosts=True) as job, ThreadPoolExecutor(1) as pool:
        host.dies()  # the first rank never closes
        for channel in job.channels[1:]:
            until(lambda channel=channel: channel.orphaned)  # type: ignore[misc]
        closed = pool.submit(job.channels[2].close, 1000.0)
        client = job.channels[1]._clients[1]
        until(lambda: client.store.check([client.keys.left(2)]))
        assert not closed.done()
        job.channels[1].close(0.0)
        closed.result(PATIENCE)


def test_the_host_of_the_first_store_counts_once_though_it_hears_nothing_there(host: Host) -> None:
    """It would take itself for a rank that has gone, and end its store before another rank has left."""
    with a_job(host, 0, hosts=True, way=Deaf) as job:
        client = job.channels[1]._clients[0]
        job.cut.set()
        job.channels[1].call(NOTICE, within(PATIENCE))
        until(lambda: job.channels[0].orphaned)
        job.channels[0].close(0.0)
        assert client.store.add(f"{client.keys.incarnation}/left", 0) == 1


def test_a_rank_leaves_once_though_another_one_takes_it_for_gone(host: Host) -> None:
    """It may have lost nothing but its way."""
    with a_job(host) as job:
        client = job.channels[1]._clients[1]
        for rank, by in ((0, 2), (0, 0), (0, 0), (2, 2)):
            client.caller.say(protocol.leave(client.keys, rank, by), within(PATIENCE))
        waited = client.caller.say(
            protocol.wait_left(client.keys), within(PATIENCE), lambda: protocol.Waited.LATE
        )
        assert waited is protocol.Waited.LATE
        client.caller.say(protocol.leave(client.keys, 1, 1), within(PATIENCE))
        waited = client.caller.say(protocol.wait_left(client.keys), within(PATIENCE))
        assert waited is protocol.Waited.THERE


class Mute(BesideStore):
    """A place that takes connections and never answers."""

    def serve(self) -> str:
        self.listening = socket.create_server(("127.0.0.1", 0))
        return f"127.0.0.1 {self.listening.getsockname()[1]}"


def test_a_second_store_that_takes_connections_and_never_answers_holds_up_no_rank(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second, "_REACHED", 1.0)
    job = Job(host, maker=Mute)
    try:
        assert [len(channel._clients) for channel in job.channels] == [1, 1, 1]
        assert job.channels[0].call(NOTICE, within(PATIENCE)) == 1
        for rank in job.ranks:
            rank.hears(1)
    finally:
        job.close()


def test_a_process_that_may_open_too_few_files_serves_no_second_store() -> None:
    """Its training would find none left. Where it may, it raises its own limit."""
    serve = """
import os, resource, sys
from torch.distributed import TCPStore
from spotguard.hooks.consensus.stores.second import BesideStore
for limit in sys.argv[1:]:
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(limit)))
        first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        print(bool(BesideStore(first, 200).serve()), resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", serve, "1311", "1312"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["False 256", "True 1312"]
