"""Every order in which the acts of several ranks can come: the real rules of agreement and gate in a small model of training.

What is real: the log folded (`Standing`), what is said to the store (`protocol.agree`), the decision (`decide`), and the
gate's rule (`Place`). What is a model: training (steps of collectives, changes and boundaries), the store (a mapping),
deaths, and time, which is that a wait may end at any moment. The log itself is explored by `test_log`: here a call is
there at once, and each rank hears of it whenever.

Acts that nobody else can see are done at once (the end of a collective, coming to rest at a boundary, taking up what was
heard): whatever comes between would come out the same before them or after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spotguard.hooks.consensus.events import (
    BoundaryEvent,
    CarriedEvent,
    LogEvent,
    NoticeEvent,
    RevoteEvent,
    WithdrawnEvent,
)
from spotguard.hooks.consensus.failover import SECOND_STORE
from spotguard.hooks.consensus.protocol import Answer, Claim, Get, Keys, Set, Wait, Waited
from spotguard.hooks.consensus.vote import Decision, Vote, ranges
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.ipc.protocol import STALL_KINDS
from tests.hooks.consensus.sayings import Sayings, Violation, perform
from tests.hooks.consensus.worlds import (
    Rank,
    Scene,
    World,
    away,
    changed,
    has,
    may,
    nameless,
    place_of,
    placed,
    standing_after,
    standing_at,
    standing_in_second,
    standing_now,
    standing_of,
    told_to_leave,
)


class Exploration:
    """One scene's. `run` walks through all of it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.keys = Keys("x", scene.ranks)
        self.sayings = Sayings()
        everybody = tuple(range(scene.ranks))
        self.partners = scene.partners or (everybody,) * scene.ranks
        self.came_from: dict[World, tuple[World, str] | None] = {}
        self.acts = scene.step
        self.meets = self.acts.count("meet")

    def run(self) -> int:
        """
        Returns:
            The number of different worlds.

        Raises:
            Violation: one of them is wrong.
        """
        first = World(tuple(Rank(restoring=rank in self.scene.restoring) for rank in range(self.scene.ranks)))
        first = self._settle(first)
        self.came_from[first] = None
        stack, seen = [first], {self._alike(first)}
        while stack:
            world = stack.pop()
            stuck = True
            for name, following in self._nexts(world):
                stuck = False
                following = self._settle(following)
                if (alike := self._alike(following)) not in seen:
                    seen.add(alike)
                    self.came_from[following] = (world, name)
                    stack.append(following)
            if stuck:
                self._check_end(world)
        return len(self.came_from)

    def _alike(self, world: World) -> object:
        """Worlds that differ in the ranks' numbers alone are explored once, where no rank is unlike the others."""
        scene = self.scene
        if (
            scene.partners
            or scene.boundary_only
            or scene.hasty
            or scene.mortal
            or scene.cut
            or scene.restoring
            or scene.second
        ):
            return world
        ranks = Counter(rank._replace(saying=self._says(rank)) for rank in world.ranks)
        store = Counter(nameless(key, value) for key, value in world.store)
        return world._replace(ranks=frozenset(ranks.items()), store=frozenset(store.items()))  # type: ignore[arg-type]

    def _says(self, rank: Rank) -> Any:
        if rank.saying is None:
            return None
        operation = self.sayings.pending[rank.saying]
        return operation.value if isinstance(operation, Claim) else type(operation).__name__

    def fail(self, world: World, why: str, last: str = "") -> Violation:
        path, at = [last] if last else [], world
        while (step := self.came_from.get(at)) is not None:
            at, name = step
            path.append(name)
        return Violation(f"{why}\n  " + "\n  ".join(reversed(path)) + f"\n{world}")

    # --- all that can come next ---

    def _nexts(self, world: World) -> Iterator[tuple[str, World]]:
        scene = self.scene
        if world.called < len(scene.calls):
            scripted = scene.calls[world.called]
            last = len(world.ranks) - 1
            for index in range(len(world.ranks)) if _is_stall(scripted) and not scene.second else (last,):
                rank = world.ranks[index]
                if not scene.second or (self._in_first(rank) and self._may_call(world, index, scripted)):
                    called, call = self._called(world, index, scripted)
                    yield f"{index}: calls {call}", called._replace(log=(*world.log, call))
            for index, rank in enumerate(world.ranks) if scene.second else ():
                if rank.phase != "gone" and self._may_call(world, index, scripted):
                    called, call = self._called(world, index, scripted)
                    second = (*world.second, *self._carries(world, index), call)
                    yield (
                        f"{index}: calls in the second store: {call}",
                        called._replace(second=second, troubled=True),
                    )
        end = self._committed(world)
        for index, rank in enumerate(world.ranks):
            if rank.phase == "gone":
                continue
            if end and not rank.leaving:
                yield f"{index}: is told to leave", changed(world, index, told_to_leave(rank))
            yield from ((f"{index}: {name}", after) for name, after in self._of_rank(world, index, rank))
            if not world.troubled:
                if index in scene.mortal:
                    yield f"{index}: dies", self._dies(world, index)
                if index in scene.cut and not rank.cut:
                    yield (
                        f"{index}: loses the store",
                        changed(world, index, rank._replace(cut=True))._replace(troubled=True),
                    )

    def _of_rank(self, world: World, index: int, rank: Rank) -> Iterator[tuple[str, World]]:
        if rank.heard < len(world.log) and not rank.cut and not rank.heard_second:
            yield "hears", changed(world, index, rank._replace(heard=rank.heard + 1))
        if rank.heard_second < len(world.second):
            following = rank._replace(heard_second=rank.heard_second + 1)
            yield "hears in the second store", changed(world, index, following)
        if self.scene.second and not self._in_first(rank):
            if carried := self._carries(world, index):
                yield "carries what it knows", world._replace(second=(*world.second, *carried))
            if again := self._asks_again(world, rank):
                yield "asks for other votes", world._replace(second=(*world.second, again))
        if rank.restoring:
            yield "restored", changed(world, index, rank._replace(restoring=False))
        elif not rank.left:
            yield from self._train(world, index, rank)
        if rank.phase == "read":
            yield "shuts", changed(world, index, self._offer(world, index, rank, rank.epoch))
        if rank.phase == "agreeing":
            yield from self._agree(world, index, rank)
        if rank.phase == "decided":
            yield "obeys", changed(world, index, self._obey(world, index, rank))
        if rank.phase == "obeying" and place_of(rank).steady():
            yield from self._save(world, index, rank)

    def _dies(self, world: World, index: int) -> World:
        gone = changed(world, index, world.ranks[index]._replace(phase="gone"))._replace(troubled=True)
        if index != self.scene.host:
            return gone
        return gone._replace(ranks=tuple(rank._replace(cut=True) for rank in gone.ranks))

    def _called(self, world: World, index: int, call: LogEvent) -> tuple[World, LogEvent]:
        """The world after this rank's call, and the call as it writes it. A stall's must be answered by a save of that rank."""
        called = world._replace(called=world.called + 1)
        if not isinstance(call, NoticeEvent) or not _is_stall(call):
            return called, call
        rank = world.ranks[index]
        ended = rank.epoch if rank.phase in ("saved", "ended") and not self.scene.hides_ended else 0
        called = changed(called, index, rank._replace(unanswered=rank.unanswered | {call.id}))
        return called, replace(call, ended=ended)

    def _may_call(self, world: World, index: int, call: LogEvent) -> bool:
        """Nobody withdraws a notice that it does not know of."""
        rank = world.ranks[index]
        read = (*world.log[: rank.heard], *world.second[: rank.heard_second])
        known = (*read, *world.log) if index == len(world.ranks) - 1 else read
        return not isinstance(call, WithdrawnEvent) or any(
            isinstance(each, NoticeEvent) and each.id == call.id for each in known
        )

    def _in_first(self, rank: Rank) -> bool:
        return rank.phase != "gone" and not rank.cut and not rank.heard_second

    def _carries(self, world: World, index: int) -> tuple[LogEvent, ...]:
        """The entries that a rank writes into the second store before all others. The last rank makes all calls in the first one, and
        calls again those that it has not read there."""
        rank = world.ranks[index]
        if not self.scene.carries:
            return ()
        there = standing_in_second(world.second).carried
        entries: tuple[LogEvent, ...] = ()
        if there is None or (there < rank.heard and not self._covered(world, rank)):
            entries = (standing_after(world.log[: rank.heard]).carry(lambda notice: notice.seconds_left),)
        if index == len(world.ranks) - 1:
            for number, each in enumerate(world.log[rank.heard :], rank.heard + 1):
                again = replace(each, was=number) if isinstance(each, (NoticeEvent, WithdrawnEvent)) else each
                entries += (again,) if again not in world.second else ()
        return entries

    def _covered(self, world: World, rank: Rank) -> bool:
        """Whether an entry of the second log, read or not, has as much of the first log as this rank."""
        return any(isinstance(each, CarriedEvent) and each.heard >= rank.heard for each in world.second)

    def _asks_again(self, world: World, rank: Rank) -> LogEvent | None:
        standing = standing_of(world, rank)
        if standing.wanted is None or not standing.undecided(rank.decided):
            return None
        again = RevoteEvent(standing.wanted.epoch)
        return None if again in world.second else again

    # --- training ---

    def _train(self, world: World, index: int, rank: Rank) -> Iterator[tuple[str, World]]:
        place, act = place_of(rank), self.acts[rank.at]
        parked = act == "leave" or (act in ("change", "begin") and not may(place_of(rank), act))
        if act == "change" and index in self.scene.unhooked:
            yield "changes unseen", changed(world, index, rank._replace(at=rank.at + 1))
        elif rank.leaving and parked and self.scene.ends_here(place):
            yield "leaves", changed(world, index, rank._replace(left=True))
        elif act in ("change", "begin"):
            if may(place, act):
                self._check_change(world, index, rank)
                yield "changes", changed(world, index, placed(rank, place)._replace(at=rank.at + 1))
        elif act == "complete":
            if place.complete():
                yield "completes", changed(world, index, placed(rank, place)._replace(at=0))
            else:
                place.rest()
                yield "rests", changed(world, index, placed(rank, place)._replace(at=rank.at + 1))
        elif act == "leave" and place.may_leave_boundary():
            yield "leaves its boundary", changed(world, index, placed(rank, place)._replace(at=0))

    def _committed(self, world: World) -> bool:
        """All calls are made, and each rank has saved what the last one wants."""
        if not self.scene.state_tensors or world.called < len(self.scene.calls):
            return False
        standing, all_of_it = standing_after(world.log), len(world.log)
        return all(
            rank.phase == "saved" and rank.heard == all_of_it and standing.counts(rank.epoch)
            for rank in world.ranks
        )

    def _arrived(self, rank: Rank) -> int:
        """How many collectives it has come to."""
        place = rank.place
        if rank.restoring:
            return 0
        if self.acts[rank.at] == "leave":
            return place[0] * self.meets
        idle = rank.at == 0 and place[0] >= self.scene.steps and place[3] is Shut.OPEN
        return place[0] * self.meets + (0 if idle else self.acts[: rank.at + 1].count("meet"))

    # --- saving ---

    def _take_up(self, world: World, index: int, rank: Rank) -> Rank:
        """What was heard, by a saver that is not in the middle of agreeing."""
        wanted = standing_of(world, rank).wanted
        if wanted is None:
            place = place_of(rank)
            place.close(Shut.OPEN)
            return placed(rank, place)._replace(phase="idle", epoch=0, decision=None)
        place = place_of(rank)
        if self.scene.reads_first:
            return rank._replace(phase="read", epoch=wanted.epoch, decision=Decision(0, place.earliest()))
        return self._offer(world, index, rank, wanted.epoch)

    def _offer(self, world: World, index: int, rank: Rank, epoch: int) -> Rank:
        place = place_of(rank)
        at_boundary = self._at_boundary(world, index, epoch)
        place.close(Shut.AT_BOUNDARY if at_boundary else Shut.BEFORE_CHANGE)
        step: int | None = self.scene.offers(place)
        if rank.phase == "read":
            assert rank.decision is not None
            step = rank.decision.step
        if rank.restoring:
            step = None
        everybody = tuple(range(self.scene.ranks))
        offer = Vote(
            index,
            step,
            boundary=at_boundary and step != place.completed,
            parks=at_boundary,
            covers=ranges(everybody if self.scene.replicas else (index,)),
        )
        saying = self.sayings.begin((epoch, offer), lambda: self.scene.agree(self.keys, epoch, offer))
        return placed(rank, place)._replace(phase="agreeing", epoch=epoch, saying=saying, decision=None)

    def _at_boundary(self, world: World, index: int, epoch: int) -> bool:
        wanted = standing_at(world, epoch).wanted
        return index in self.scene.boundary_only or (wanted is not None and wanted.boundary)

    def _agree(self, world: World, index: int, rank: Rank) -> Iterator[tuple[str, World]]:
        if away(rank):
            yield (
                "gives up the store",
                changed(world, index, self._returned(rank, Decision(rank.epoch, None))),
            )
            return
        assert rank.saying is not None
        operation = self.sayings.pending[rank.saying]
        if isinstance(operation, Wait):
            if not standing_of(world, rank).counts(rank.epoch):
                yield from self._go_on(world, index, rank, Waited.OVER)
            if index in self.scene.hasty:
                yield from self._go_on(world._replace(troubled=True), index, rank, Waited.LATE)
            return
        yield from self._say(world, index, rank)

    def _quiet(self, world: World, rank: Rank) -> bool:
        """What is said next reads what will never change, or says what nobody looks for yet."""
        assert rank.saying is not None
        operation = self.sayings.pending[rank.saying]
        if isinstance(operation, Wait):
            return has(world, operation.keys)
        if isinstance(operation, Claim):
            return not self.scene.overwrites and has(world, (operation.key,))
        if isinstance(operation, Set):
            return not (self.scene.hasty or self.scene.mortal)
        return isinstance(operation, Get)

    def _say(self, world: World, index: int, rank: Rank) -> Iterator[tuple[str, World]]:
        assert rank.saying is not None
        operation = self.sayings.pending[rank.saying]
        if isinstance(operation, Wait):
            yield from self._go_on(world, index, rank, Waited.THERE)
            return
        store = dict(world.store)
        answer = perform(store, operation, overwrites=self.scene.overwrites)
        yield from self._go_on(world._replace(store=frozenset(store.items())), index, rank, answer)

    def _go_on(self, world: World, index: int, rank: Rank, answer: Answer) -> Iterator[tuple[str, World]]:
        assert rank.saying is not None
        known, said = self.sayings.answer(rank.saying, answer)
        after = rank._replace(saying=known)
        if known is None:
            after = self._returned(rank, said)._replace(decided=rank.decided if said is None else rank.epoch)
        word = type(self.sayings.pending[rank.saying]).__name__.lower()
        yield f"{word}: {answer!r}", changed(world, index, after)

    def _returned(self, rank: Rank, decision: Decision | None) -> Rank:
        phase = "ended" if decision is None else "decided"
        return rank._replace(phase=phase, saying=None, decision=decision)

    def _obey(self, world: World, index: int, rank: Rank) -> Rank:
        decision, place = rank.decision, place_of(rank)
        assert decision is not None
        if decision.step is None or index not in decision.ranks:
            if self._beside(world, rank.epoch):
                place.close(Shut.OPEN)
            return placed(rank, place)._replace(phase="ended", unanswered=frozenset())
        awaited = decision.some_park and place.shut is Shut.AT_BOUNDARY
        place.close(place.shut, None if self.scene.stays_shut else decision.step, awaited=awaited)
        return placed(rank, place)._replace(phase="obeying")

    def _save(self, world: World, index: int, rank: Rank) -> Iterator[tuple[str, World]]:
        decision, place = rank.decision, place_of(rank)
        assert decision is not None
        if decision.step != place.completed:
            raise self.fail(world, f"rank {index} saves step {place.completed} for {decision}", "saves")
        others = [each for epoch, each in world.saved if epoch == rank.epoch and each != decision]
        if others:
            raise self.fail(world, f"rank {index} saves {decision}, and others {others}", "saves")
        if self._beside(world, rank.epoch):
            place.close(Shut.OPEN)
        saved = changed(world, index, placed(rank, place)._replace(phase="saved", unanswered=frozenset()))
        yield "saves", saved._replace(saved=world.saved | {(rank.epoch, decision)})
        if index in self.scene.moving and not world.moved and place.shut is not Shut.AT_BOUNDARY:
            moved = changed(world, index, rank._replace(phase="ended"))
            if rank.epoch > SECOND_STORE or away(rank):
                second = (*world.second, *self._carries(world, index), BoundaryEvent(rank.epoch))
                yield "has moved", moved._replace(second=second, moved=True)
            else:
                yield "has moved", moved._replace(log=(*world.log, BoundaryEvent(rank.epoch)), moved=True)

    def _beside(self, world: World, epoch: int) -> bool:
        """Training goes on once the state is copied."""
        wanted = standing_at(world, epoch).wanted
        return wanted is not None and wanted.cause == "background"

    # --- what nobody else can see is done at once ---

    def _settle(self, world: World) -> World:
        while (after := self._settled_once(world)) is not None:
            world = after
        return world

    def _settled_once(self, world: World) -> World | None:
        for index, rank in enumerate(world.ranks):
            if rank.phase == "gone":
                continue
            if not (rank.restoring or rank.left) and self.acts[rank.at] == "meet":
                here = self._arrived(rank)
                idle = rank.at == 0 and here == rank.place[0] * self.meets
                if not idle and all(
                    self._arrived(world.ranks[other]) >= here for other in self.partners[index]
                ):
                    return changed(world, index, rank._replace(at=rank.at + 1))
            if rank.phase == "agreeing" and not away(rank) and self._quiet(world, rank):
                ((_, after),) = self._say(world, index, rank)
                return after
            if rank.phase not in ("agreeing", "read") and (not rank.cut or rank.heard_second):
                wanted = standing_of(world, rank).wanted
                if (0 if wanted is None else wanted.epoch) != rank.epoch:
                    return changed(world, index, self._take_up(world, index, rank))
        return None

    # --- what must hold ---

    def _check_change(self, world: World, index: int, rank: Rank) -> None:
        """Nobody who takes part in a save goes on while another has saved and is parked."""
        standing = standing_now(world)
        for epoch, decision in world.saved:
            if not standing.counts(epoch) or self._beside(world, epoch) or index not in decision.ranks:
                continue
            assert decision.step is not None
            if rank.place[0] >= decision.step and not rank.place[1]:
                raise self.fail(world, f"rank {index} goes on, and others have saved {decision}", "changes")

    def _check_end(self, world: World) -> None:
        standing = standing_now(world)
        if self.scene.second:
            self._check_notices(world)
        alive = [(index, rank) for index, rank in enumerate(world.ranks) if rank.phase != "gone"]
        for index, rank in alive:
            if rank.phase == "agreeing":
                raise self.fail(world, f"rank {index} waits for ever")
            if rank.heard_second != len(world.second):
                raise self.fail(world, f"rank {index} has not heard all of the second log")
            stand = {each.id for each in standing.notices}
            if (world.second or not rank.cut) and (lost := rank.unanswered & stand):
                raise self.fail(world, f"no save of rank {index} answers {lost}")
            if rank.cut and not world.second:
                continue
            if rank.leaving and not rank.left:
                raise self.fail(world, f"rank {index} waits for one that has left")
            if rank.heard != len(world.log) and not world.second:
                raise self.fail(world, f"rank {index} has not heard all")
            if rank.phase in ("agreeing", "decided", "read"):
                raise self.fail(world, f"rank {index} waits for ever")
            wanted = standing.wanted
            trains = wanted is None or wanted.cause == "background"
            if trains and rank.place[3] is not Shut.OPEN and rank.phase != "obeying":
                raise self.fail(world, f"rank {index} is left parked")
            whole = len(alive) == len(world.ranks) and not any(other.cut for _, other in alive)
            if trains and whole and rank.place[0] < self.scene.steps:
                raise self.fail(world, f"rank {index} does not train on")
            if wanted is None:
                continue
            if rank.phase == "obeying" and not world.troubled:
                raise self.fail(world, f"rank {index} does not come to its step")
            if rank.phase not in ("obeying", "saved", "ended"):
                raise self.fail(world, f"rank {index} has done nothing")
            if not world.troubled and not self.scene.restoring and rank.phase != "saved":
                raise self.fail(world, f"rank {index} has not saved, and nothing was in its way")
        if any(
            rank.phase == "saved" and rank.epoch == (standing.wanted.epoch if standing.wanted else -1)
            for _, rank in alive
        ):
            self._check_others(world, alive)

    def _check_notices(self, world: World) -> None:
        """A notice that was called stands, and one whose withdrawal was called does not, by whichever store."""
        called: dict[str, bool] = {}
        for call in self.scene.calls[: world.called]:
            if isinstance(call, (NoticeEvent, WithdrawnEvent)):
                called[call.id] = isinstance(call, NoticeEvent)
        stand = {id for id, stands in called.items() if stands}
        if (found := {each.id for each in standing_now(world).notices}) != stand:
            raise self.fail(world, f"the notices {found} stand, and {stand} were called")

    def _check_others(self, world: World, alive: list[tuple[int, Rank]]) -> None:
        """Where one has saved, all that are named have, unless one of them has died or lost the store."""
        (decision,) = {rank.decision for _, rank in alive if rank.phase == "saved"} - {None}
        assert decision is not None
        lost = len(alive) < len(world.ranks) or any(rank.cut for _, rank in alive)
        for index, rank in alive:
            if index in decision.ranks and rank.phase != "saved" and not lost:
                raise self.fail(world, f"rank {index} has not saved what others have")


def _is_stall(call: LogEvent) -> bool:
    return isinstance(call, NoticeEvent) and call.kind in STALL_KINDS


def explore(scene: Scene) -> int:
    return Exploration(scene).run()
