"""Every interleaving of what ranks do from a call to the save: one step, one decision, and nobody left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotguard.hooks.consensus import protocol
from spotguard.hooks.consensus.events import BackgroundEvent, NoticeEvent, WithdrawnEvent
from spotguard.hooks.consensus.failover import SECOND_STORE
from spotguard.hooks.consensus.protocol import Claim, Keys, Saying, Waited
from spotguard.hooks.consensus.vote import Decision, Vote, read_decision
from tests.hooks.consensus.exploration import Exploration, explore
from tests.hooks.consensus.sayings import Violation
from tests.hooks.consensus.worlds import Scene


def notice(id: str, machine: str = "m0") -> NoticeEvent:
    return NoticeEvent(id, "interruption", "aws", 30.0, machine, 120.0)


ONE = (notice("a"),)
TWO = (notice("a"), notice("b", "m1"))
STALL = tuple(replace(each, kind="stall", drill=True) for each in TWO)
BACK = (notice("a"), WithdrawnEvent("a"))
BESIDE = (BackgroundEvent(), notice("a"))
PAIR, THREE = frozenset({0, 1}), frozenset({0, 1, 2})
#: Each stage of a pipeline waits for the one before it, and may be steps behind it.
STAGES = ((0,), (0, 1), (1, 2))
#: A step of which the gate hears at its boundary, whatever has changed.
UNHOOKED = ("meet", "change", "begin", "complete", "leave")

SCENES = {
    # every rank alike
    "two ranks, steps apart": Scene(2, ONE, steps=2),
    "three ranks": Scene(3, ONE, steps=2),
    "four ranks": Scene(4, ONE),
    "two machines": Scene(2, TWO),
    "a stall that two machines see": Scene(2, STALL),
    "a stall that two machines see, and one takes it back": Scene(2, (*STALL, WithdrawnEvent("a"))),
    "a stall that one machine sees again, while another's stands": Scene(
        2, (*STALL, WithdrawnEvent("a"), replace(STALL[0], id="c"))
    ),
    "a stall that two ranks of a machine call": Scene(2, (*STALL, STALL[1])),
    "withdrawn": Scene(3, BACK),
    "withdrawn, and noticed again": Scene(2, (*BACK, notice("c"))),
    "beside training": Scene(2, (BackgroundEvent(), BackgroundEvent()), steps=2),
    "beside training, then a notice": Scene(2, BESIDE),
    "a state that moves": Scene(2, ONE, moving=PAIR),
    "a state that moves beside training": Scene(2, (BackgroundEvent(),), steps=2, moving=PAIR),
    "a state that moves under two notices": Scene(2, TWO, moving=PAIR),
    "collectives inside a step": Scene(3, ONE, steps=2, step=("meet", "change", "meet", "complete", "leave")),
    "two optimizers": Scene(2, BACK, step=("meet", "change", "change", "begin", "complete", "leave")),
    "steps that change nothing": Scene(2, BACK, step=("meet", "begin", "complete", "leave")),
    "accumulated gradients": Scene(2, BACK, step=("meet", "meet", "change", "complete", "leave")),
    # one unlike the others
    "one saves at boundaries only": Scene(3, ONE, boundary_only=frozenset({1})),
    "all save at boundaries only": Scene(2, BACK, boundary_only=PAIR),
    "a pipeline": Scene(3, ONE, steps=2, partners=STAGES),
    "one inside restore": Scene(3, ONE, restoring=frozenset({2})),
    "one inside restore, withdrawn, and noticed again": Scene(
        2, (*BACK, notice("c")), restoring=frozenset({1})
    ),
    # told to leave, behind the commit
    "all leave": Scene(2, ONE, state_tensors=True),
    "all leave, who saves at boundaries too": Scene(3, ONE, state_tensors=True, boundary_only=frozenset({1})),
    "all leave, after two notices, and one is hooked nowhere": Scene(
        2, TWO, state_tensors=True, boundary_only=frozenset({1}), unhooked=frozenset({1}), step=UNHOOKED
    ),
    "all leave, and one's state has moved": Scene(
        2, ONE, state_tensors=True, boundary_only=frozenset({1}), moving=frozenset({0})
    ),
    "all leave their boundaries": Scene(2, ONE, state_tensors=True, boundary_only=PAIR),
    # out of time, dead, or without a store
    "out of time": Scene(2, ONE, hasty=PAIR),
    "one of three out of time": Scene(3, ONE, hasty=frozenset({0})),
    "out of time and withdrawn": Scene(2, BACK, hasty=PAIR),
    "a stall that two machines see, out of time": Scene(2, STALL, hasty=PAIR),
    "out of time beside training": Scene(2, (BackgroundEvent(),), steps=2, hasty=PAIR),
    "replicas, out of time": Scene(2, ONE, hasty=PAIR, replicas=True),
    "a death": Scene(2, ONE, hasty=PAIR, mortal=PAIR),
    "a death among replicas": Scene(2, BACK, hasty=PAIR, mortal=PAIR, replicas=True),
    "a death beside training": Scene(2, (BackgroundEvent(),), hasty=PAIR, mortal=PAIR),
    "a store that goes silent": Scene(2, ONE, hasty=PAIR, cut=PAIR, replicas=True),
    # with a second store
    "a first store that does not answer each caller": Scene(2, ONE, second=True),
    "a withdrawal comes by either store": Scene(2, BACK, second=True, steps=0),
    "one loses the first store": Scene(2, ONE, cut=PAIR, second=True, hasty=PAIR, steps=0),
    "the first store goes with its rank": Scene(
        2, ONE, mortal=frozenset({0}), host=0, second=True, hasty=PAIR, replicas=True
    ),
}

#: Minutes, each of them.
LARGE = {
    "three replicas, and the first store goes with its rank": Scene(
        3, ONE, mortal=frozenset({0}), host=0, second=True, hasty=frozenset({1, 2}), replicas=True
    ),
    "a withdrawal, and the first store goes with its rank": Scene(
        2, BACK, mortal=frozenset({0}), host=0, second=True, hasty=frozenset({1}), replicas=True, steps=0
    ),
    "the second of two notices comes by either store": Scene(2, TWO, second=True, steps=0),
    "a stall that two machines see, by either store": Scene(2, STALL, second=True, steps=0),
    "one loses the first store, and they train": Scene(2, ONE, cut=PAIR, second=True, hasty=PAIR),
    "beside training, then a notice, by either store": Scene(2, BESIDE, second=True),
    "four ranks, two machines": Scene(4, TWO),
    "four ranks, withdrawn": Scene(4, BACK),
    "three ranks, beside training, then a notice": Scene(3, BESIDE),
    "three ranks, a state that moves": Scene(3, TWO, moving=THREE),
    "three ranks, all out of time": Scene(3, ONE, hasty=THREE),
    "three replicas, a death": Scene(3, ONE, hasty=frozenset({0, 1}), mortal=THREE, replicas=True),
    "a death beside training, then a notice": Scene(2, BESIDE, hasty=PAIR, mortal=frozenset({0})),
    "a long pipeline": Scene(3, ONE, steps=3, partners=STAGES),
    "a pipeline of four": Scene(4, ONE, steps=2, partners=(*STAGES, (2, 3))),
    "one of four saves at boundaries only": Scene(4, ONE, boundary_only=frozenset({1})),
    "all of four leave": Scene(4, ONE, state_tensors=True, boundary_only=frozenset({1, 2})),
    "four calls": Scene(2, (BackgroundEvent(), *TWO, WithdrawnEvent("b"))),
    "a store that goes silent between two notices": Scene(2, TWO, hasty=PAIR, cut=PAIR),
    "out of time between two notices": Scene(2, TWO, hasty=PAIR),
}


#: Two seconds each and more. Their kinds of calls, and who may be out of time, are in scenes that are shorter.
LONG = {
    "a stall that one machine sees again, while another's stands",
    "a stall that two machines see, out of time",
    "one of three out of time",
    "a withdrawal comes by either store",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SCENES]
)
def test_in_every_order_all_ranks_save_one_step(name: str) -> None:
    """All that save a call's checkpoint save the same step by the same decision; none is left parked, none goes on."""
    assert explore(SCENES[name]) > 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGE)
def test_in_every_order_of_many_ranks_and_calls(name: str) -> None:
    """The same, where the orders are hundreds of thousands."""
    assert explore(LARGE[name]) > 1000


def test_replicas_come_to_save_in_the_second_store() -> None:
    """The explored orders are not only those in which nothing comes of it."""
    exploration = Exploration(SCENES["the first store goes with its rank"])
    exploration.run()
    saved = {saved for world in exploration.came_from for saved in world.saved}
    in_second = {decision.ranks for epoch, decision in saved if epoch > SECOND_STORE}
    assert {(1,), (0, 1)} <= in_second


# --- the exploration can fail --------------------------------------------------------------------------------


def decides_alone(keys: Keys, epoch: int, offer: Vote) -> Saying[Decision | None]:
    """The real rule, but that who runs out of time does not ask whether it is decided."""
    saying, late = protocol.agree(keys, epoch, offer), False
    operation = next(saying)
    try:
        while True:
            if late and isinstance(operation, Claim):
                return read_decision(operation.value)
            answer = yield operation
            late = late or answer is Waited.LATE
            operation = saying.send(answer)
    except StopIteration as end:
        decision: Decision | None = end.value
        return decision


HASTY = SCENES["replicas, out of time"]


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            Scene(2, ONE, offers=lambda place: place.completed), id="a dirty rank offers its old count"
        ),
        pytest.param(
            replace(HASTY, agree=decides_alone), id="each decides for itself when it is out of time"
        ),
        pytest.param(Scene(2, ONE, reads_first=True), id="the position is read before the gate is shut"),
        pytest.param(replace(HASTY, overwrites=True), id="a decision overwrites the one before"),
        pytest.param(
            replace(SCENES["one loses the first store"], replicas=True, overwrites=True),
            id="a decision in the second store overwrites the one before",
        ),
        pytest.param(
            Scene(2, TWO, second=True, carries=False),
            id="the second log begins with nothing",
        ),
        pytest.param(Scene(2, STALL, hides_ended=True), id="a stall joins a save that its caller has ended"),
        pytest.param(Scene(2, ONE, stays_shut=True), id="who is behind is not let through"),
        pytest.param(
            Scene(2, ONE, state_tensors=True, boundary_only=frozenset({1}), ends_here=lambda place: True),
            id="who is told to leave ends wherever it is parked",
        ),
    ],
)
def test_a_broken_rule_is_found(scene: Scene) -> None:
    """Each of these splits the step, or leaves somebody behind, in some order."""
    with pytest.raises(Violation):
        explore(scene)
