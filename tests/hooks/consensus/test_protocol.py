"""The log of calls, in every interleaving: what ranks hear is the same, in order, and no call gets lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest

from spotguard.hooks.consensus import protocol
from spotguard.hooks.consensus.protocol import Drop, Get, Has, Keys, LogEntry, Saying, Set, Wait, Waited
from tests.hooks.consensus.sayings import Sayings, Violation, perform


@dataclass(frozen=True)
class Scene:
    #: How many entries each rank adds to the log.
    calls: tuple[int, ...]
    #: At most one of the ranks dies, at any moment.
    mortal: bool = False
    #: A store that sets one key after the other: who rings may die in the middle.
    torn: bool = False
    overwrites: bool = False
    call: Callable[[Keys, str, int], Saying[int]] = protocol.call


class Rank(NamedTuple):
    listening: int
    alive: bool = True
    calling: int | None = None
    #: Of what is set key by key, the keys that are set.
    half: int = 0
    begun: int = 0
    #: The entries whose numbers it was told.
    called: tuple[tuple[int, str], ...] = ()
    heard: tuple[bytes, ...] = ()


class World(NamedTuple):
    ranks: tuple[Rank, ...]
    store: frozenset[tuple[str, object]] = frozenset()


class Exploration:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.world = len(scene.calls)
        self.keys = Keys("x", self.world)
        self.sayings = Sayings()

    def run(self) -> int:
        first = World(tuple(Rank(self._begin_listening(rank)) for rank in range(self.world)))
        seen, stack = {first}, [first]
        while stack:
            world = stack.pop()
            nexts = list(self._nexts(world))
            if not nexts:
                self._check_end(world)
            for following in nexts:
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return len(seen)

    def _begin_listening(self, rank: int) -> int:
        return self.sayings.begin(rank, lambda: protocol.listen(self.keys, rank))

    def _begin_calling(self, entry: str, heard: int) -> int:
        return self.sayings.begin((entry, heard), lambda: self.scene.call(self.keys, entry, heard))

    def _nexts(self, world: World) -> Iterator[World]:
        for index, rank in enumerate(world.ranks):
            if not rank.alive:
                continue
            if self.scene.mortal and all(each.alive for each in world.ranks):
                yield self._with(world, index, rank._replace(alive=False))
            if rank.calling is not None:
                yield self._call(world, index, rank, rank.calling)
            elif rank.begun < self.scene.calls[index]:
                calling = self._begin_calling(f"{index}/{rank.begun}", len(rank.heard))
                yield self._with(world, index, rank._replace(calling=calling, begun=rank.begun + 1))
            yield from self._listen(world, index, rank)

    def _call(self, world: World, index: int, rank: Rank, calling: int) -> World:
        operation, half = self.sayings.pending[calling], 0
        if self.scene.torn and isinstance(operation, Set) and rank.half + 1 < len(operation.values):
            half = rank.half + 1
            operation = Set((operation.values[rank.half],))
        store = dict(world.store)
        answer = perform(store, operation, overwrites=self.scene.overwrites)
        after = rank._replace(half=half)
        if not half:
            known, number = self.sayings.answer(calling, answer)
            after = after._replace(calling=known)
            if known is None:
                after = after._replace(called=(*rank.called, (number, f"{index}/{rank.begun - 1}")))
        return self._with(world._replace(store=frozenset(store.items())), index, after)

    def _listen(self, world: World, index: int, rank: Rank) -> Iterator[World]:
        """From one bell to the next at once: what lies between, nobody else looks at."""
        store = dict(world.store)
        wait = self.sayings.pending[rank.listening]
        assert isinstance(wait, Wait)
        if not perform(store, Has(wait.keys)):
            return
        known, _ = self.sayings.answer(rank.listening, Waited.THERE)
        heard = rank.heard
        while known is not None and not isinstance(operation := self.sayings.pending[known], Wait):
            answer: Any = None
            match operation:
                case LogEntry(epoch=epoch, raw=raw):
                    if epoch != len(heard) + 1:
                        raise Violation(f"rank {index} hears number {epoch} after {heard}")
                    heard = (*heard, raw)
                case Get() | Drop():
                    answer = perform(store, operation)
            known, _ = self.sayings.answer(known, answer)
        assert known is not None
        after = rank._replace(listening=known, heard=heard)
        others = [each.heard for each in world.ranks]
        if any(each[: len(heard)] != heard[: len(each)] for each in others):
            raise Violation(f"rank {index} has heard {heard}, and others {others}")
        yield self._with(world._replace(store=frozenset(store.items())), index, after)

    def _check_end(self, world: World) -> None:
        entries = {key: str(value) for key, value in world.store if "/call/" in key}
        for index, rank in enumerate(world.ranks):
            if not rank.alive:
                continue
            if len(rank.heard) < len(entries) - 1:
                raise Violation(f"rank {index} has heard {rank.heard} of {entries}")
            for number, entry in [pair for each in world.ranks for pair in each.called]:
                if rank.heard[number - 1 : number] != (entry.encode(),):
                    raise Violation(f"rank {index} has not heard {entry}, number {number}: {rank.heard}")

    @staticmethod
    def _with(world: World, index: int, rank: Rank) -> World:
        return world._replace(ranks=(*world.ranks[:index], rank, *world.ranks[index + 1 :]))


SCENES = {
    "two call at once": Scene((2, 2)),
    "one of three only listens": Scene((1, 1, 0)),
    "two call, and one dies": Scene((2, 1), mortal=True),
    "two of three call, and one dies": Scene((1, 1, 0), mortal=True),
    "one dies while it rings": Scene((1, 1, 0), mortal=True, torn=True),
}


@pytest.mark.parametrize("name", SCENES)
def test_all_ranks_hear_the_same_calls_in_order(name: str) -> None:
    """Whoever has been told his number is heard by everybody that lives; and who comes next rings for who has died."""
    assert Exploration(SCENES[name]).run() > 100


LARGE = {
    "three call at once": Scene((1, 1, 1)),
    "three call, and one dies": Scene((1, 1, 1), mortal=True),
    "one calls again, and one dies": Scene((2, 1, 0), mortal=True),
    "four ranks": Scene((1, 1, 0, 0), mortal=True),
    "three call, and one dies while it rings": Scene((1, 1, 1), mortal=True, torn=True),
}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGE)
def test_many_ranks_hear_the_same_calls_in_order(name: str) -> None:
    """The same, of more ranks and calls."""
    assert Exploration(LARGE[name]).run() > 1000


def silent_before(keys: Keys, entry: str, heard: int) -> Saying[int]:
    """The real rule, but that nobody rings for the entry before."""
    saying = protocol.call(keys, entry, heard)
    operation = next(saying)
    if heard:
        operation = saying.send(None)
    try:
        while True:
            operation = saying.send((yield operation))
    except StopIteration as end:
        number: int = end.value
        return number


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(replace(SCENES["two call at once"], overwrites=True), id="a number is claimed twice"),
        pytest.param(
            replace(SCENES["one dies while it rings"], call=silent_before),
            id="nobody rings for the one before",
        ),
    ],
)
def test_a_broken_log_is_found(scene: Scene) -> None:
    """The exploration itself can fail."""
    with pytest.raises(Violation):
        Exploration(scene).run()


def test_a_rank_that_two_ranks_report_gone_counts_once() -> None:
    """Else the rank that hosts the store would leave before the last one."""
    store: dict[str, object] = {}
    keys = Keys("x", 2)

    def said(saying: Saying[None]) -> bool:
        answer = None
        while True:
            try:
                answer = perform(store, saying.send(answer))
            except StopIteration:
                return "x/all-left" in store

    assert [said(protocol.leave(keys, rank, by)) for rank, by in ((1, 1), (1, 0), (0, 0))] == [
        False,
        False,
        True,
    ]
