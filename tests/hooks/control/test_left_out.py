"""A value that no save can hold, which came after `register`: it alone is left out, and all that shows a checkpoint names it."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from spotguard.cli.commands.checkpoints import inspect
from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.ipc import protocol
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.errors import StateError
from tests.fakes.noticed import Heard, notice
from tests.fakes.store import FakeStore
from tests.fakes.training import Job, guarded, small, step_on
from tests.fakes.two_guards import on_all, two_guards

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

PATH = PurePosixPath("best.pt")


class Counter:
    """An object of the script, with a state of its own."""

    def __init__(self) -> None:
        self.seen, self.where = 0, None

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "where": self.where}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.where = state["seen"], state["where"]


def noted() -> Job:
    job = small()
    job.values["notes"] = {"best": 1.5, "path": None, "deep": {"paths": ["a"], "n": 3}, "pair": ("a", 1)}
    job.values["counter"] = Counter()
    return job


def set_note(job: Job, value: Any) -> None:
    job.values["notes"]["path"] = value


def set_deep(job: Job, value: Any) -> None:
    job.values["notes"]["deep"]["paths"] = ["a", value]


def set_pair(job: Job, value: Any) -> None:
    job.values["notes"]["pair"] = (value, 2)


def set_counter(job: Job, value: Any) -> None:
    job.values["counter"].where, job.values["counter"].seen = value, 7


def set_group(job: Job, value: Any) -> None:
    job.values["optimizer"].param_groups[0]["tag"] = value


#: How the value comes there, where it is, and what the restored job has there.
WAYS: dict[str, tuple[Callable[[Job, Any], None], str, Callable[[Job], Any]]] = {
    "a dict": (set_note, "notes.path", lambda job: job.values["notes"]["path"]),
    "a list in a dict in a dict": (
        set_deep,
        "notes.deep.paths[1]",
        lambda job: job.values["notes"]["deep"]["paths"][1],
    ),
    "a tuple": (set_pair, "notes.pair[0]", lambda job: job.values["notes"]["pair"][0]),
    "an object's own state": (set_counter, "counter.where", lambda job: job.values["counter"].where),
    "an optimizer's options": (
        set_group,
        "optimizer.param_groups[0].tag",
        lambda job: job.values["optimizer"].param_groups[0]["tag"],
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_no_save_can_hold_is_left_out_alone_and_stays_at_a_restore(way: str) -> None:
    change, where, here = WAYS[way]
    store, named = FakeStore(), f"{where}: pathlib.PurePosixPath"
    job = noted()
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        guard.restore()
        step_on(guard, job, 0)
        change(job, PATH)
        job.values["notes"]["best"] = 0.5
        step_on(guard, job, 1)
        guard._agent.hear(notice())
        committed = heard.wait(protocol.Committed)
        assert (committed.level, committed.step) == ("full", 2)
        assert committed.detail == f"left out: {named}"
        assert guard._position().checkpoint_left_out == named
    assert job.values["notes"]["best"] == 0.5
    whole = find_whole(store, "run")
    assert whole is not None
    whole.prove()
    assert verify(store, whole) == []
    (outcome,) = [json.loads(store.objects[key]) for key in store.objects if "/outcomes/" in key]
    (listed,) = list_checkpoints(store, "run")
    assert listed.left_out == whole.left_out == (named,) == tuple(outcome["left_out"])
    assert inspect.as_json(whole, store.url)["left_out"] == [named]
    again = noted()
    change(again, "here")
    with guarded(store, again.values) as guard:
        assert guard.restore() == 2
    assert here(again) == "here"
    assert again.values["notes"]["best"] == 0.5


@pytest.mark.parametrize("rank", [0, 1])
def test_value_that_one_rank_leaves_out_is_named_by_all_ranks_and_in_the_record(rank: int) -> None:
    """One rank writes the record, and another one may mark the checkpoint."""
    store = FakeStore()
    with two_guards([store, store]) as trainers:
        trainers[rank].optimizer.param_groups[0]["tag"] = PATH
        on_all(lambda each: trainers[each].step())
        trainers[0].guard._agent.hear(notice())
        details = on_all(lambda each: trainers[each].heard.wait(protocol.Committed).detail)
        named = f"optimizer.param_groups[0].tag: pathlib.PurePosixPath on rank {rank}"
        assert details == [f"left out: {named}"] * 2
        assert [each.guard._position().checkpoint_left_out for each in trainers] == [named] * 2
    outcomes = [json.loads(store.objects[key]) for key in store.objects if "/outcomes/" in key]
    assert [each["left_out"] for each in outcomes] == [[named]]
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.left_out == (named,)


@pytest.mark.parametrize("kind", ["by hand", "background"])
def test_a_value_that_is_right_again_is_saved_again(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    store, job = FakeStore(), noted()
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        guard.restore()

        def save(count: int) -> None:
            if kind == "by hand":
                guard.save()
            else:
                assert guard._saver.background()
            heard.wait(protocol.Committed, count)

        for step, value in enumerate([PATH, PATH, "best.pt"]):
            set_note(job, value)
            step_on(guard, job, step)
            save(step + 1)
        assert guard._position().checkpoint_left_out == ""
        lines = [each.message for each in caplog.records if "[SG424]" in each.message]
        named = "notes.path: pathlib.PurePosixPath"
        assert [line.partition(named)[0] for line in lines] == [
            "no save can hold ",
            "step 1 is saved without ",
        ]
    newest, *older = list_checkpoints(store, "run")
    assert newest.left_out == ()
    assert all(each.left_out for each in older)
    again = noted()
    with guarded(store, again.values) as guard:
        guard.restore()
    assert again.values["notes"]["path"] == "best.pt"


def test_a_value_that_no_save_can_hold_is_refused_at_register() -> None:
    job = noted()
    set_note(job, PATH)
    with (
        pytest.raises(StateError, match=r"notes\.path is a pathlib\.PurePosixPath.*SG401"),
        guarded(FakeStore(), job.values),
    ):
        pass


def test_a_key_and_an_element_that_no_save_can_hold_are_left_out_by_name() -> None:
    store, job = FakeStore(), noted()
    with guarded(store, job.values) as guard:
        guard.restore()
        job.values["notes"] |= {"keys": {PATH: 1, (1, 2): 2}, "set": {PATH, 3}, "lock": threading.Lock()}
        step_on(guard, job, 0)
        saved = guard.save()
        assert saved.level == "full"
        assert [each.partition(": ")[0] for each in saved.left_out] == [
            "notes.keys key <PurePosixPath>",
            "notes.set element <PurePosixPath>",
            "notes.lock",
        ]
    again = noted()
    with guarded(store, again.values) as guard:
        guard.restore()
    assert again.values["notes"]["keys"] == {(1, 2): 2}
    assert again.values["notes"]["set"] == {3}
    assert "lock" not in again.values["notes"]


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda pairs: defaultdict(int, pairs)])
def test_a_key_and_an_element_that_no_save_can_hold_stay_where_a_run_goes_back(
    kind: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    store, job = FakeStore(), noted()
    keys, elements, lock = (
        kind([("a", 1), (PATH, [2]), ((PATH, 1), 3), ("b", 4)]),
        {PATH, 3},
        threading.Lock(),
    )
    with guarded(store, job.values) as guard:
        guard.restore()
        job.values["notes"] |= {"keys": keys, "set": elements, "lock": lock}
        job.values["counter"].where = {PATH: 5, "n": 6}
        step_on(guard, job, 0)
        guard.save()
        caplog.clear()
        keys["a"], keys["new"] = 0, 0
        elements.clear()
        elements |= {PATH, 4}
        job.values["counter"].where["n"] = 0
        step_on(guard, job, 1)
        assert guard.restore() == 1
        warned = [each.getMessage() for each in caplog.records if each.levelno >= 30]
    assert [*keys.items()] == [("a", 1), (PATH, [2]), ((PATH, 1), 3), ("b", 4)]
    assert elements == {PATH, 3}
    assert job.values["notes"]["lock"] is lock
    assert job.values["counter"].where == {PATH: 5, "n": 6}
    assert [line.rpartition("[")[2] for line in warned] == ["SG608]"]
