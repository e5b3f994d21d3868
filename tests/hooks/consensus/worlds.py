"""What there is in an exploration of the agreement: the scene, each rank, and the world that they make up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from spotguard.hooks.consensus import protocol
from spotguard.hooks.consensus.events import LogEvent
from spotguard.hooks.consensus.failover import SECOND_STORE
from spotguard.hooks.consensus.job_state import JobState
from spotguard.hooks.consensus.protocol import Keys, Saying
from spotguard.hooks.consensus.vote import Decision, Vote, read_offer
from spotguard.hooks.control.gate_rule import GateRule, Shut

#: The acts of a step: a collective, the change of an optimizer, what `guard.step()` does, and leaving it. One that changes
#: nothing (a scaler saw an overflow) has a "begin" instead: the boundary asks the gate itself.
STEP = ("meet", "change", "complete", "leave")
#: Makes what a rank says to agree.
Agree = Callable[[Keys, int, Vote], Saying[Decision | None]]


@dataclass(frozen=True)
class Scene:
    """What may happen."""

    ranks: int
    #: Called in this order, each at any moment.
    calls: tuple[LogEvent, ...]
    #: Steps that are trained while nobody calls; then there is nothing more to train on.
    steps: int = 1
    #: Of each rank, those whose collectives it takes part in; by default all.
    partners: tuple[tuple[int, ...], ...] = ()
    #: The acts of a step.
    step: tuple[str, ...] = STEP
    #: Can save at boundaries only.
    boundary_only: frozenset[int] = frozenset()
    #: All hold the same: each covers all others.
    replicas: bool = False
    #: May run out of time while they wait for a decision.
    hasty: frozenset[int] = frozenset()
    #: One of these may die, at any moment.
    mortal: frozenset[int] = frozenset()
    #: One of these may lose the store, at any moment.
    cut: frozenset[int] = frozenset()
    #: There is a second store. A call may come there at any moment, as if the first one did not answer its caller.
    second: bool = False
    #: Ranks carry what they know into the second store (broken: they do not).
    carries: bool = True
    #: The one whose death takes the first store from all.
    host: int = -1
    #: Inside `restore`, at first.
    restoring: frozenset[int] = frozenset()
    #: One of these may find that its state has moved while it was read between boundaries.
    moving: frozenset[int] = frozenset()
    #: Nothing asks the gate before these change, but their boundaries do.
    unhooked: frozenset[int] = frozenset()
    #: Each is told to leave, at any moment after all have saved what was called last.
    state_tensors: bool = False
    # --- what is broken, to see that it is found ---
    offers: Callable[[GateRule], int] = GateRule.earliest
    agree: Agree = protocol.agree
    #: The position is read, and then the gate is shut.
    reads_first: bool = False
    #: A claim overwrites what is there.
    overwrites: bool = False
    #: A stall's call does not tell which save its caller has ended.
    hides_ended: bool = False
    #: Whoever is behind is not let through.
    stays_shut: bool = False
    #: Whether who is told to leave does so where it is parked.
    ends_here: Callable[[GateRule], bool] = GateRule.may_end_here


class Rank(NamedTuple):
    place: tuple[int, bool, bool, Shut, int | None, bool, int | None] = (
        0, False, False, Shut.OPEN, None, False, None
    )  # fmt: skip
    #: Which act of its step training has come to.
    at: int = 0
    heard: int = 0
    #: The same for the second store's log. A rank that has heard anything there has left the first.
    heard_second: int = 0
    #: The newest call whose decision it has read.
    decided: int = 0
    #: "idle", "read" (broken), "agreeing", "decided", "obeying", "saved", "ended", "gone" (dead), with the epoch.
    phase: str = "idle"
    epoch: int = 0
    #: What it is saying to the store.
    saying: int | None = None
    decision: Decision | None = None
    restoring: bool = False
    cut: bool = False
    #: The stalls that it has called, and for which no save of its own has ended since.
    unanswered: frozenset[str] = frozenset()
    #: Told to leave; and its training has left.
    leaving: bool = False
    left: bool = False


class World(NamedTuple):
    ranks: tuple[Rank, ...]
    log: tuple[LogEvent, ...] = ()
    #: The second store's log.
    second: tuple[LogEvent, ...] = ()
    #: Scripted calls that were made.
    called: int = 0
    store: frozenset[tuple[str, object]] = frozenset()
    #: What was saved by anybody: decisions by epoch.
    saved: frozenset[tuple[int, Decision]] = frozenset()
    moved: bool = False
    #: A time-out, a death or a lost store has come.
    troubled: bool = False


@cache
def standing_after(log: tuple[LogEvent, ...]) -> JobState:
    return standing_after(log[:-1]).after(log[-1]) if log else JobState()


@cache
def standing_in_second(log: tuple[LogEvent, ...]) -> JobState:
    return standing_in_second(log[:-1]).after(log[-1]) if log else JobState(SECOND_STORE)


def standing_at(world: World, epoch: int) -> JobState:
    """After this entry, in whichever log it is."""
    if epoch > SECOND_STORE:
        return standing_in_second(world.second[: epoch - SECOND_STORE])
    return standing_after(world.log[:epoch])


def standing_of(world: World, rank: Rank) -> JobState:
    """As this rank has it."""
    return standing_at(world, SECOND_STORE + rank.heard_second if rank.heard_second else rank.heard)


def standing_now(world: World) -> JobState:
    """As it is in the end: the second log is newer, once there is anything in it."""
    return standing_at(world, SECOND_STORE + len(world.second) if world.second else len(world.log))


def away(rank: Rank) -> bool:
    """Whether the store of the save that it agrees on is none of its own any more."""
    return rank.epoch <= SECOND_STORE and (rank.cut or rank.heard_second > 0)


@cache
def nameless(key: str, value: object) -> object:
    """An offer without who made it."""
    if "/offer/" not in key:
        return key, value
    offer = read_offer(str(value))
    return key.split("/")[2], offer.step, offer.boundary


def place_of(rank: Rank) -> GateRule:
    return GateRule(*rank.place[:6], together=True, awaited=rank.place[6])


def placed(rank: Rank, place: GateRule) -> Rank:
    held = place.at_boundary, place.shut, place.target, place.resting, place.awaited
    return rank._replace(place=(place.completed, place.dirty, *held))


def told_to_leave(rank: Rank) -> Rank:
    place = place_of(rank)
    place.close(Shut.BEFORE_CHANGE)
    return placed(rank, place)._replace(leaving=True)


def may(place: GateRule, act: str) -> bool:
    """Whether training goes on at this act, which may change something."""
    return place.may_change() if act == "change" else place.may_begin_boundary()


def changed(world: World, index: int, rank: Rank) -> World:
    return world._replace(ranks=(*world.ranks[:index], rank, *world.ranks[index + 1 :]))


def has(world: World, keys: tuple[str, ...]) -> bool:
    there = {key for key, _ in world.store}
    return all(key in there for key in keys)
