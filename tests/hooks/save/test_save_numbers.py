"""No two saves have one name, and no key is put twice with other bytes, in any order of saves, ends and restores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import DeniedError, SpotguardError
from tests.fakes.called import CalledStore, Request
from tests.fakes.store import FakeStore
from tests.fakes.training import small
from tests.tiers import examples

pytestmark = pytest.mark.torch


@dataclass
class Saves:
    """A training that saves in every way, and all that its saves have put."""

    store: FakeStore = field(default_factory=FakeStore)
    clock: SystemClock = field(default_factory=SystemClock)
    step: int = 0
    epoch: int = 0
    attempt: int = 1
    #: The puts that are left before `event` happens.
    left: int = 0
    event: Callable[[], None] = lambda: None
    #: Bytes by key, what was put with others, and the checkpoints that were committed.
    put: dict[str, bytes] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = small(width=4)
        self.state = State(self.job.values, lambda frame: None, self.clock)
        seen = CalledStore(self.store, self._before, self._after)
        self.writer = Checkpointer(seen, "run", 1, clock=self.clock, keep=Keep(2), lossy=True)
        self.train()

    def close(self) -> None:
        self.writer.close()
        self.state.close()

    def _before(self, request: Request) -> None:
        if request.verb != "put" or request.key.endswith(SAVING):
            return
        self.left -= 1
        if self.left == 0:
            self.event()

    def _after(self, request: Request) -> None:
        data = self.store.objects.get(request.key)
        if (
            request.verb == "put" and data is not None
        ):  # an announcement is none: it says how long its save still has
            assert self.put.setdefault(request.key, data) == data, f"{request.key} is put with other bytes"

    # --- what happens to a training ---

    def train(self) -> None:
        self.job.step(self.step)
        self.step += 1
        self.state.at_boundary()

    def go_back(self) -> None:
        """To the step before: training reaches the same step again, with other values."""
        self._begin_attempt()
        self.writer.restored(None)
        self.step = max(0, self.step - 1)

    def save(self, way: str, end: str, at: int) -> None:
        """One save.

        Args:
            way: how it is asked for.
            end: what happens to it, at one of its puts.
            at: the number of that put.
        """
        self.job.values["model"][0].weight.data.add_(1)  # so that no two saves put the same bytes
        self.state.take_again()
        scope = CancelScope(self.clock, self.clock.monotonic() + 60 if "notice" in way else None)
        self.left, self.event = (
            at,
            {
                "": lambda: None,
                "withdrawn": lambda: scope.abandon("it is void"),
                "promoted": lambda: scope.tighten(self.clock.monotonic() + 50),
                "failed": self._fail,
                "moved": lambda: self.job.values["model"][0].weight.data.add_(1),
                "back": self._begin_attempt,
            }[end],
        )
        spec: dict[str, Any] = {"parked": True}
        if "ranks" in way:
            self.epoch += "again" not in way
            spec |= {
                "epoch": self.epoch,
                "weights": way.split()[-1] if way.endswith(("first", "early")) else "with the rest",
            }
        kind: Any = "emergency" if "notice" in way else "background" if "beside" in way else "manual"
        opened = self.train if "beside" in way else None
        step = SaveSpec(self.step, **spec)
        began = self.attempt
        with suppress(SpotguardError):
            saved = self.writer.save(self.state, step, kind, scope, None, opened, drill="drill" in way)
            if saved is not None:
                self.committed.append(saved.url)
                assert f"-{began:04d}-" in saved.url, "a save belongs to the attempt in which it began"
        self.left = 0
        self.state.at_boundary()

    def _begin_attempt(self) -> None:
        self.attempt += 1
        self.writer.begin_attempt(self.attempt)

    def _fail(self) -> None:
        raise DeniedError("no more")


#: The ways to save: without other ranks, or for a call of theirs. A second save for one call is refused.
WAYS = ["by hand", "beside", "notice", "notice drill", "ranks by hand", "ranks beside", "ranks again"]
WAYS += ["ranks notice", "ranks notice first", "ranks notice early", "ranks notice again"]
ENDS = ["", "withdrawn", "promoted", "failed", "moved", "back"]


def stories() -> st.SearchStrategy[list[Any]]:
    save = st.tuples(st.sampled_from(WAYS), st.sampled_from(ENDS), st.integers(1, 5))
    return st.lists(st.sampled_from(["train", "go back"]) | save, min_size=2, max_size=6)


@settings(max_examples=examples(24), deadline=None)
@given(stories())
@example([("by hand", "", 1), ("by hand", "", 1), ("by hand", "", 1), ("ranks by hand", "", 1)])
@example([("ranks notice early", "failed", 3), ("ranks notice again", "", 1)])
@example([("ranks beside", "", 1), ("by hand", "", 1), ("ranks by hand", "", 1)])
def test_no_two_saves_have_one_name_and_no_key_has_two_contents(story: list[Any]) -> None:
    with closing(Saves()) as saves:
        for act in story:
            if act == "train":
                saves.train()
            elif act == "go back":
                saves.go_back()
            else:
                saves.save(*act)
        assert saves.twice == []
        assert len({*saves.committed}) == len(saves.committed)


def test_a_save_in_two_parts_stays_of_its_attempt() -> None:
    """Its weights are committed, a newer attempt begins, and its moments follow under the next name."""
    with closing(Saves()) as saves:
        saves.save("ranks notice first", "back", 2)
        assert [url.split("/")[-2] for url in saves.committed] == ["000000001-0001-0003"]
        assert {key.split("/")[2] for key in saves.put} == {"000000001-0001-0002", "000000001-0001-0003"}
