"""This rank among the others: how long they are waited for, and what is said where nobody can be called."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import RankManifest
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.plan.partitioner import RankRoles
from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.events import LogEvent, NoticeEvent, WithdrawnEvent
from spotguard.hooks.consensus.job_state import JobState
from spotguard.hooks.consensus.vote import Decision
from spotguard.hooks.control.ending.sigterm import SigtermHold
from spotguard.hooks.control.gate import Gate
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.control.ranks.coordinator import Coordinator
from spotguard.hooks.control.report import Report
from spotguard.hooks.control.saver import Saver
from spotguard.hooks.ipc.notice import PreemptionNotice
from spotguard.hooks.ipc.protocol import FAILURE, LAUNCHER, PEER, STALL, Message, PeerPreempted, Preempt
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SavedCheckpoint, SaveRequest, SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import CheckpointError, DeniedError, FullError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import ManualClock
from tests.fakes.commit import put_manifest
from tests.fakes.store import FakeStore
from tests.fakes.two_guards import on_all, two_guards
from tests.hooks.ranks.gang import until

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

PATIENCE = 100.0
LATE = 10.0
NO_STATE = "no state to save yet on rank"


class Heard(Report):
    """Whom a save tells: that it has begun, and what became of it."""

    def __init__(self) -> None:
        super().__init__(
            lambda key, data, seconds: None,
            "run",
            lambda: 1,
            SystemClock(),
            lambda message, *, droppable=False: False,
            lambda notice: None,
            lambda notice, committed: None,
        )
        self.words: queue.SimpleQueue[str] = queue.SimpleQueue()

    def outcome(self) -> str:
        """What became of the next save that nobody was told of."""
        while (word := self.words.get(timeout=PATIENCE)) == "begun":
            pass
        return word

    def progress(self, preemption: PreemptionNotice, phase: str, step: int, done: int, total: int) -> None:
        if phase == "begun":
            self.words.put(phase)

    def committed(self, preemption: PreemptionNotice, saved: SavedCheckpoint) -> None:
        self.words.put("committed")

    def failed(self, preemption: PreemptionNotice, reason: str, last_step: int, *, lost: bool = True) -> None:
        assert (
            threading.current_thread().name == "spotguard-saver"
        )  # what it also puts into the store is that one's to put
        self.words.put(reason)

    def checkpointed(self, saved: SavedCheckpoint) -> None:
        pass


def state(rank: int) -> State:
    made = State({"extra": torch.full((3,), rank)}, lambda frame: None, rank=rank, world=2)
    made.at_boundary()
    return made


def checkpointer(store: BlobStore, rank: int) -> Checkpointer:
    return Checkpointer(
        store, "run", 1, clock=SystemClock(), keep=Keep(2), rank=rank, world=2, incarnation="nonce"
    )


class Cut:
    """The first rank's way to the job's store: its mailbox's connection breaks, the others stand."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def clone(self) -> Cut:
        return self

    def wait(self, *args: Any) -> None:
        self._store.wait(*args)
        self._look()

    def check(self, *args: Any) -> bool:
        self._look()
        found: bool = self._store.check(*args)
        return found

    def _look(self) -> None:
        if self.cut and threading.current_thread().name == "spotguard-mailbox":
            raise RuntimeError("Connection reset by peer")


@dataclass(frozen=True)
class End:
    """One of two ranks, at a boundary; its saving thread is there."""

    ranks: Coordinator
    saver: Saver
    state: State
    writer: Checkpointer
    store: BlobStore
    heard: Heard


class Beside:
    """The maker of a second store in this process."""

    def __init__(self) -> None:
        self._store = HashStore()

    def serve(self) -> str:
        return "here"

    def reach(self, place: str) -> Any:
        return self._store


@contextmanager
def two(
    clock: Clock,
    other: Clock | None = None,
    met: Any = None,
    store: BlobStore | None = None,
    *,
    second: Beside | None = None,
) -> Iterator[list[End]]:
    """On machines "a" and "b". The way of the first rank to the job's store is `met`; that of the other, if there is a second one."""
    met, store = met or HashStore(), store or FakeStore()
    own = 0 if second is None else 1

    def join(rank: int) -> End:
        channel = Channel.join(
            met if rank == own else getattr(met, "_store", met),
            rank,
            2,
            "ab"[rank],
            SystemClock(),
            meet=lambda _: b"life",
            hosts=second is not None and rank == 0,
            second=second,
        )
        time = other or clock if rank else clock
        ranks, heard = Coordinator(channel, time, _nobody), Heard()
        held, writer, gate = state(rank), checkpointer(store, rank), Gate(together=True)
        saver = Saver(
            gate=gate, state=held, checkpointer=writer, clock=time, listener=heard, coordinator=ranks
        )
        gate.begin_boundary()
        gate.arrive(7)
        saver.start()
        ranks.begin(saver, writer, held, heard)
        return End(ranks, saver, held, writer, store, heard)

    def leave(end: End) -> None:
        end.saver.close(PATIENCE)
        end.ranks.close()
        end.writer.close()
        end.state.close()

    with ThreadPoolExecutor(2) as pool:
        ends = [each.result(PATIENCE) for each in [pool.submit(join, rank) for rank in range(2)]]
        try:
            yield ends
        finally:
            for each in [pool.submit(leave, end) for end in ends]:
                each.result(PATIENCE)


@contextmanager
def first_of_two(clock: ManualClock) -> Iterator[tuple[Coordinator, Heard]]:
    with two(clock) as ends:
        yield ends[0].ranks, ends[0].heard


def _nobody(message: Message, *, droppable: bool = False) -> bool:
    return False


def test_damage_that_one_rank_reports_is_known_on_all() -> None:
    name = CheckpointName(1, 5, 4)
    with two(SystemClock()) as ends:
        key = f"run/checkpoints/{name}/00001-of-00002/0003.safetensors"
        ends[1].ranks.damaged(name, "an object is missing", [key])
        until(lambda: all("an object is missing" in end.writer.damage.of(name, ()) for end in ends))
        for end in ends:
            assert end.writer.damage.of(CheckpointName(1, 6, 0), ()) == ""
            assert end.writer.damage.of(CheckpointName(1, 6, 0), {key}) != ""


def test_a_machine_that_stays_after_all_is_no_measure_of_another_ones_time() -> None:
    clock = ManualClock()
    with first_of_two(clock) as (ranks, _):
        standing = JobState()
        calls: list[LogEvent] = [
            NoticeEvent("x", "terminate", "aws", 120.0, "a", 120.0),
            WithdrawnEvent("x"),
            NoticeEvent("y", "terminate", "aws", 30.0, "b", 30.0),
        ]
        for epoch, call in enumerate(calls, 1):
            standing = standing.after(call)
            ranks._hear(epoch, call, standing)
        job = SaveRequest("emergency", CancelScope(clock), epoch=3, departing=frozenset({1}))
        agreed = ranks.agreed(job, Decision(3, 7, ranks=(0, 1)), 7)
        assert agreed.departing_until == clock.monotonic() + 30.0 + LATE


def test_a_second_try_that_nobody_hears_of_is_said_to_have_failed() -> None:
    """The state moved while it was read, and the job's store is gone: the agent is not to wait for a word."""
    clock = ManualClock()
    with first_of_two(clock) as (ranks, heard):
        ranks.channel.close(0.0)
        preemption = PreemptionNotice(
            ["x"], clock.monotonic() + 30, clock.monotonic() + 27, "aws", "terminate"
        )
        job = SaveRequest("emergency", CancelScope(clock), preemption, epoch=1)
        ranks.again(job, "model/0.weight was changed while spotguard read it")
        clock.advance(60)
        assert heard.outcome().startswith("model/0.weight was changed while spotguard read it; ")


def test_a_step_that_is_saved_again_for_a_second_notice_is_not_sent_again() -> None:
    """Also where this rank has seen the first whole: another has not, and waits for this one's part."""
    store = FakeStore()
    held, writer = state(0), checkpointer(store, 0)
    held.collect()
    for epoch in (5, 6):
        other = RankManifest("run", 3, 1, 2 * epoch, 1, 2, incarnation="nonce")
        put_manifest(store, other)
        store.calls.clear()
        agreed = SaveSpec(3, epoch, RankRoles(frozenset({1}) if epoch == 6 else frozenset()))
        saved = writer.save(held, agreed, "emergency", CancelScope(SystemClock(), None))
        assert saved is not None
        sent = [key for verb, key in store.calls if verb == "put" and key.endswith(".safetensors")]
        assert bool(sent) is (epoch == 5)
        whole = find_whole(store, "run")
        assert whole is not None
        assert (whole.name.step, whole.name.save) == (3, 2 * epoch)
    writer.close()


def test_a_save_by_hand_with_a_rank_that_has_no_state_ends() -> None:
    with two(SystemClock()) as (first, second):
        first.saver.ready = True
        with pytest.raises(CheckpointError, match="not saved: no state to save yet on rank 1 of 2"):
            first.saver.manual()
        assert first.heard.words.empty()
        assert second.heard.words.empty()


def test_a_save_by_hand_waits_for_a_rank_that_loads_its_state() -> None:
    """All ranks have loaded theirs, and this one has been slower by a moment."""
    clock = ManualClock()
    with two(SystemClock(), clock) as (first, second), ThreadPoolExecutor(2) as pool:
        first.saver.ready, second.saver.loading = True, True
        saves = [pool.submit(first.saver.manual)]
        assert clock.wait_for_waiters()
        saves.append(pool.submit(second.saver.manual))
        assert not saves[0].done()
        second.saver.ready, second.saver.loading = True, False

        def over() -> bool:
            clock.advance(1.0)
            return all(each.done() for each in saves)

        until(over)
        assert [each.result(PATIENCE).step for each in saves] == [7, 7]


def test_a_background_save_waits_for_no_rank_that_loads_its_state() -> None:
    """It may have been called for at the step that all ranks leave by this load, and the rank would vote for it behind that."""
    store = FakeStore()
    with two(SystemClock(), ManualClock(), store=store) as (first, second):
        first.saver.ready, second.saver.loading = True, True
        first.ranks.background("a test says so")
        until(lambda: first.ranks.channel.failover.decided == second.ranks.channel.failover.decided == 1)
        until(lambda: first.saver.idle and second.saver.idle)
        assert first.saver._gate.place.shut is second.saver._gate.place.shut is Shut.OPEN
    assert not store.objects


def test_a_launchers_sigterm_waits_for_a_save_whose_call_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another rank has died, so that the launcher ends this one, which has just met the error that follows."""
    store, goes = FakeStore(), threading.Event()
    with two_guards([store, store]) as (first, second):
        on_all(lambda rank: (first, second)[rank].step())
        ranks, saver = first.guard._parts.coordinator, first.guard._parts.saver
        assert ranks is not None
        call = ranks.channel.call

        def slow(*told: Any, **how: Any) -> int:
            goes.wait(PATIENCE)
            return call(*told, **how)

        monkeypatch.setattr(ranks.channel, "call", slow)
        ranks.notice(Preempt("failure-1", 60.0, 0.0, FAILURE, "RuntimeError"))
        try:
            assert (saver.has_notice, saver.saving) == (True, False)
            assert first.guard._parts.shutdown._hold(signal.SIGTERM) is SigtermHold.SAVING
        finally:
            goes.set()
        until(lambda: saver.committed is not None)
        until(lambda: first.guard._parts.shutdown._hold(signal.SIGTERM) is not SigtermHold.SAVING)


def test_an_interrupted_restore_keeps_no_save_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C in a notebook, once the state was loaded: this rank has none until it restores again."""
    store = FakeStore()
    with two_guards([store, store]) as (first, second):

        def restore(rank: int) -> None:
            (first, second)[rank].guard.restore()

        def interrupted(step: int, inherited: str = "") -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(second.guard._parts.losses, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            on_all(restore)
        with pytest.raises(CheckpointError, match="no state to save yet on rank 1 of 2"):
            first.guard.save()


def test_a_rank_that_hears_the_call_on_its_way_to_its_own_save_by_hand_waits_for_it_there() -> None:
    """It saves at boundaries only: what it has copied at the last one may be older than its step."""
    store = FakeStore()
    with two_guards([store, store]) as (first, second), ThreadPoolExecutor(2) as pool:
        on_all(lambda rank: (first, second)[rank].step())
        second.guard._state.save_at_boundaries("a test says so")
        saves = [pool.submit(first.guard.save)]
        place = second.guard._gate.place
        until(lambda: second.guard._gate.place.shut is Shut.AT_BOUNDARY)
        assert not saves[0].done()
        saves.append(pool.submit(second.guard.save))
        assert [save.result(PATIENCE).step for save in saves] == [1, 1]
        assert place.shut is Shut.OPEN


def test_a_rank_whose_store_refuses_holds_nobody() -> None:
    """The others would wait a quarter of an hour for its part."""
    store = FakeStore()

    def refused(request: Request) -> None:
        """Its rights do not reach so far."""
        if request.verb == "put" and "/00001-of-00002" in request.key:
            raise DeniedError(f"put {request.key}: denied")

    asked = CalledStore(store, refused)
    with two(SystemClock(), store=asked) as (first, second), ThreadPoolExecutor(1) as pool:
        first.saver.ready = second.saver.ready = True
        theirs = pool.submit(second.saver.manual)
        with pytest.raises(
            CheckpointError, match=r"not saved: rank 1 of 2 will upload no manifest: .*denied"
        ):
            first.saver.manual()
        with pytest.raises(DeniedError):
            theirs.result(PATIENCE)
    assert not any(key.endswith("COMMIT.json") for key in store.objects)


def test_a_first_rank_that_hears_no_calls_calls_for_nothing_but_notices() -> None:
    """The others would stop training for it, and wait for its offer."""
    store = Cut(HashStore())
    with two(SystemClock(), met=store) as (first, second):
        store.cut = True
        second.ranks.over("nothing", "")
        until(lambda: first.ranks.orphaned)
        first.saver.ready = second.saver.ready = True
        assert not first.ranks.background("it is time")
        with pytest.raises(CheckpointError, match="this rank can no longer call the other ranks"):
            first.saver.manual()
        assert second.ranks.channel.call(WithdrawnEvent("nothing"), lambda: PATIENCE) == 2


def test_a_save_by_hand_that_the_first_rank_never_calls_for_ends() -> None:
    """It has died, and the job's store lives elsewhere."""
    clock = ManualClock()
    with two(SystemClock(), clock) as (_, second), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(second.saver.manual)
        try:
            assert clock.wait_for_waiters()
        finally:
            clock.advance(3600)
        with pytest.raises(CheckpointError, match="step 7 is not saved: rank 0 has not called for it"):
            asked.result(PATIENCE)


def test_a_second_machines_stall_is_answered_though_the_first_ones_save_is_over() -> None:
    """The first machine's agent has not taken its stall back yet."""

    def refused(request: Request) -> None:
        if request.verb == "put":
            raise FullError(f"put {request.key}: denied")

    with two(SystemClock(), store=CalledStore(FakeStore(), refused)) as ends:
        for end in ends:
            end.saver.ready = True
        for end, id in zip(ends, "xy", strict=True):
            end.ranks.notice(Preempt(id, 600.0, 60.0, STALL, "spotguard", drill=True))
            for each in ends:
                assert "denied" in each.heard.outcome()
            until(lambda: not any(each.saver.saving for each in ends))
        for end, id in zip(ends, "xy", strict=True):
            end.ranks.withdrawn(id, "the drill is over")
        until(lambda: not any(each.saver.has_notice for each in ends))
        assert ends[0].ranks.channel.standing.notices == ()


def test_a_stall_that_another_rank_joined_to_a_save_is_answered_by_a_rank_that_has_ended_it() -> None:
    """The other rank's own save was still under way."""
    with two(SystemClock()) as (first, second):
        for end in (first, second):
            end.state.collect()
            end.saver.ready = True
        first.ranks.notice(Preempt("x", 600.0, 60.0, STALL, "spotguard", drill=True))
        assert [end.heard.outcome() for end in (first, second)] == ["committed"] * 2
        until(lambda: not (first.saver.saving or second.saver.saving))
        joined = NoticeEvent(
            second.ranks.notices.id_in_job("y"), STALL, "spotguard", 600.0, "b", 600.0, drill=True
        )
        first.ranks.channel.call(joined, lambda: PATIENCE)
        assert second.heard.outcome() == "committed"
        assert second.ranks.channel.standing.notices[-1].id == joined.id
        first.ranks.withdrawn("x", "the drill is over")
        second.ranks.over(joined.id, "the drill is over")
        until(lambda: not (first.saver.has_notice or second.saver.has_notice))


def test_a_notice_that_another_rank_took_back_is_no_measure_of_the_next_one_of_its_name() -> None:
    clock = ManualClock()
    with two(clock) as (first, second):
        first.ranks.notice(Preempt("x", 2.0, 0.2, "terminate", "aws"))
        assert NO_STATE in first.heard.outcome()
        # The first may have its answer before this one hears.
        until(lambda: bool(second.ranks.channel.standing.notices))
        (said,) = second.ranks.channel.standing.notices
        second.ranks.channel.call(WithdrawnEvent(said.id), lambda: PATIENCE)
        until(lambda: not first.ranks.channel.standing.notices)
        clock.advance(60)
        first.ranks.notice(Preempt("x", 120.0, 12.0, "terminate", "aws"))
        assert NO_STATE in first.heard.outcome()  # and not: out of time


def test_each_rank_says_what_became_of_a_launchers_save_though_another_took_the_notice_back() -> None:
    """The rank whose save ended first does so; one that waits for the answer to its marker is not called off by it."""
    store, first, answered = FakeStore(), threading.Semaphore(), threading.Event()

    def held(request: Request) -> None:
        marks = request.verb.startswith("put") and request.key.endswith("COMMIT.json")
        if marks and first.acquire(blocking=False):
            answered.wait(PATIENCE)

    asked = CalledStore(store, after=held)
    with two(SystemClock(), store=asked) as ends, ThreadPoolExecutor(2) as pool:
        for end in ends:
            end.saver.ready = True
        ends[0].ranks.notice(Preempt("sigterm", 24.0, 0.0, LAUNCHER, "SIGTERM"))
        outcomes = [pool.submit(end.heard.outcome) for end in ends]
        sooner = min(wait(outcomes, PATIENCE, FIRST_COMPLETED).done, key=outcomes.index)
        (notice,) = ends[0].ranks.channel.standing.notices
        ends[outcomes.index(sooner)].ranks.channel.call(WithdrawnEvent(notice.id), lambda: PATIENCE)
        until(lambda: not any(end.ranks.channel.standing.notices for end in ends))
        answered.set()
        assert [each.result(PATIENCE) for each in outcomes] == ["committed", "committed"]
        until(lambda: not any(end.saver.has_notice for end in ends))


def test_a_rank_that_hears_no_calls_says_so_at_a_notice_and_goes_on_when_it_is_outlived() -> None:
    clock, store = ManualClock(), Cut(HashStore())
    with two(clock, met=store) as (first, second):
        store.cut = True
        second.ranks.over("nothing", "")  # whatever comes next
        until(lambda: first.ranks.orphaned)
        notice = Preempt("x", 30.0, 3.0, "terminate", "aws")
        first.ranks.notice(notice)
        assert "this rank receives no more calls" in first.heard.outcome()
        assert first.saver.has_notice
        clock.advance(60)
        first.ranks.notice(notice)  # once more: nobody waits here for so long
        until(lambda: not first.saver.has_notice)
        until(lambda: not second.saver.has_notice)
        assert first.heard.words.empty()


class Silent(Cut):
    """The ranks' way to the job's store, whose machine is silent once it is cut: no call returns."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.called, self.again = threading.Event(), threading.Event()

    def compare_set(self, *args: Any) -> bytes:
        if self.cut:
            self.called.set()
            self.again.wait()
        value: bytes = self._store.compare_set(*args)
        return value

    def _look(self) -> None:
        """The mailbox only waits."""


def test_a_stall_behind_a_store_that_is_silent_is_answered_soon() -> None:
    """Its notice has ten minutes, which nobody has who waits for this rank's end."""
    clock, store = ManualClock(), Silent(HashStore())
    with two(clock, met=store) as (first, _):
        store.cut = True
        try:
            first.ranks.notice(Preempt("x", 600.0, 60.0, "stall", "spotguard", drill=True))
            assert store.called.wait(PATIENCE)
            clock.advance(11)
            assert "has not answered" in first.heard.outcome()
            until(lambda: not first.saver.has_notice)
        finally:
            store.again.set()


@pytest.mark.parametrize(("kind", "stands"), [("stall", True), ("restart", True), ("terminate", False)])
def test_another_machines_stall_stays_one_when_this_machines_agent_answers(
    kind: str, stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's answer has the kind of a peer's notice. A rank that hangs here would else be waited for."""
    with two(SystemClock()) as (first, second):
        found: list[PreemptionNotice] = []
        called: list[PeerPreempted] = []
        monkeypatch.setattr(second.saver, "emergency", lambda notice, *_, **__: found.append(notice))
        monkeypatch.setattr(second.ranks.notices, "_send", called.append)
        second.ranks.notices.greet()
        first.ranks.notice(Preempt("x", 600.0, 60.0, kind, "spotguard", drill=kind == "stall"))
        until(lambda: bool(found and called))
        second.ranks.notice(Preempt(called[0].id, 600.0, 60.0, PEER, "spotguard", called[0].drill))
        assert [each.stall for each in found] == [stands, stands]


def test_a_stall_that_both_machines_see_is_saved_once_and_each_agent_is_answered() -> None:
    """The other machine's alarm comes while both ranks write for the first one's."""
    store, called = FakeStore(), threading.Event()

    def held(request: Request) -> None:
        if request.verb == "put" and request.key.endswith(".json"):
            assert called.wait(PATIENCE)

    with two(SystemClock(), store=CalledStore(store, held)) as ends:
        for end in ends:
            end.state.collect()
            end.saver.ready = True
        ends[0].ranks.notice(Preempt("x", 600.0, 60.0, "stall", "spotguard", drill=True))
        assert [end.heard.words.get(timeout=PATIENCE) for end in ends] == ["begun"] * 2
        ends[1].ranks.notice(Preempt("y", 600.0, 60.0, "stall", "spotguard", drill=True))
        until(lambda: all(len(end.saver.preemption.ids) == 2 for end in ends if end.saver.preemption))
        called.set()
        assert [end.heard.words.get(timeout=PATIENCE) for end in ends] == ["committed"] * 2
        for end, id in zip(ends, "xy", strict=True):
            end.ranks.withdrawn(id, "the drill is over")
        until(lambda: not any(end.saver.has_notice for end in ends))
        assert all(end.heard.words.empty() for end in ends)
    assert len([key for key in store.objects if key.endswith("COMMIT.json")]) == 1


def test_a_save_that_a_later_call_takes_over_does_not_answer_for_it() -> None:
    """This step is committed here. Another rank may not know, and saves it again for that call: with this one's part."""
    with two(ManualClock()) as (first, _):
        put_manifest(first.store, RankManifest("run", 7, 1, 10, 1, 2, incarnation="nonce"))
        first.state.collect()
        scope = CancelScope(SystemClock(), None)
        first.saver.in_turn(lambda: first.writer.save(first.state, SaveSpec(7, 5), "emergency", scope))
        until(lambda: first.saver.committed is not None)
        first.saver.ready = True
        preemption = PreemptionNotice(["x"], 1e9, 1e9, "aws", "terminate")
        first.saver.emergency(preemption, 6)
        first.saver.emergency(preemption, 7)
        said = [first.heard.words.get(timeout=PATIENCE) for _ in range(2)]
        first.saver.release("x", "it is enough")
        assert said == ["begun", "begun"]


def test_a_call_that_comes_while_a_rank_ends_is_answered() -> None:
    """It has taken the place of the save that the end waits for, and that one says nothing."""
    clock, held = SystemClock(), threading.Event()
    with two(clock) as (first, _), ThreadPoolExecutor(1) as pool:
        first.saver.ready = True
        first.saver.in_turn(lambda: held.wait(PATIENCE))
        ending = pool.submit(first.saver.close, PATIENCE)
        until(lambda: first.saver._ending and not first.saver._jobs.empty())
        now = clock.monotonic()
        first.saver.emergency(PreemptionNotice(["x"], now + 5, now + 4, "aws", "terminate"), 6)
        held.set()
        ending.result(PATIENCE)
        assert "no answer in time from rank 1 of 2" in first.heard.outcome()


@pytest.mark.parametrize("before", [True, False], ids=["before the notice", "by the notice"])
def test_a_first_rank_whose_store_one_rank_has_lost_is_waited_for_as_any_other(before: bool) -> None:
    """One connection was reset. All leave that store, and the vote in the second one shows that the first rank lives."""
    store = Cut(HashStore())
    with two(SystemClock(), met=store, second=Beside()) as (first, second):
        for end in (first, second):
            end.saver.ready = True
        store.cut = True
        if before:
            second.ranks.over("nothing", "")
            until(lambda: first.ranks.channel.standing.carried is not None)
        first.ranks.notice(Preempt("x", 30.0, 3.0, "terminate", "aws"))
        assert [end.heard.outcome() for end in (first, second)] == ["committed"] * 2
        assert second.ranks.channel.orphaned
        (epoch,) = {end.ranks.channel.failover.decided for end in (first, second)}
        job = SaveRequest("emergency", CancelScope(SystemClock()), epoch=epoch)
        agreed = second.ranks.agreed(job, Decision(epoch, 7, ranks=(0, 1)), 7)
        assert not agreed.failed
        whole = find_whole(first.store, "run")
        assert whole is not None
        assert (whole.name.step, whole.missing) == (7, ())
        first.ranks.withdrawn("x", "it stays")
        for end in (first, second):
            until(lambda end=end: not end.saver.has_notice)  # type: ignore[misc]
            assert end.ranks.channel.standing.notices == ()


def test_a_save_that_has_failed_before_the_ranks_left_its_store_is_known_to_have_failed_in_the_second_one() -> (
    None
):
    """One of them may not have read it in the first."""
    store = Cut(HashStore())
    with two(SystemClock(), met=store, second=Beside()) as (first, second):
        job = SaveRequest("emergency", CancelScope(SystemClock()), epoch=5)
        store.cut = True
        first.ranks.failed(job, "its store refuses")  # by which the other one loses the store
        until(lambda: second.ranks.failed_ranks._failed.get(5) == {0: "its store refuses"})


def test_the_rank_that_serves_the_store_has_its_values_distrusted_though_it_dies_right_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its store goes with it, before any other rank has read a word there."""
    store = Cut(HashStore())
    with two(SystemClock(), met=store, second=Beside()) as (first, second):
        monkeypatch.setattr(first.ranks, "_tell", lambda call: None)  # a dead rank reports nothing
        store.cut = True
        first.ranks.distrust("its values may be wrong")
        until(lambda: second.ranks.channel.orphaned or bool(second.ranks.failed_ranks.distrusted))
        second.ranks.over("nothing", "")
        until(lambda: second.ranks.channel.standing.withdrawn >= {"nothing"})
        assert second.ranks.failed_ranks.distrusted == "on rank 0 its values may be wrong"
