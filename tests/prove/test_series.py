"""Which lives there are, and which of them ends everything."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spotguard.hooks.recorder.plan import Action
from spotguard.prove import series
from spotguard.prove.copies import Original
from spotguard.prove.record import OpenedFiles, Record
from spotguard.prove.runner import Ground, Life, ProveError, Runner
from spotguard.prove.series import UNDISTURBED, LifeSeries, SeriesRunner
from spotguard.providers.clock import SystemClock
from tests.prove.recorded import boundary, record


def met(**turns: Sequence[int]) -> Record:
    """A run of ten steps, with these events in these turns."""
    return record(
        *(
            boundary(n, turn=[(what.replace("_", " "), "", "") for what, of in turns.items() if n in of])
            for n in range(11)
        )
    )


def test_notices_are_spread_over_the_run_and_over_the_turn() -> None:
    """The first one goes the way of a cloud's."""
    every = range(11)
    found = series.preempted(met(input=every, step=every), 10, 4)
    assert found.actions == (
        Action("notice", 2),
        Action("preempt", 4, "forward"),
        Action("preempt", 6, "optimizer"),
        Action("preempt", 8, "after optimizer"),
        None,
    )


def test_no_notice_waits_at_a_place_that_no_turn_passes() -> None:
    """Of a script that steps by hand and calls no module."""
    found = series.preempted(met(), 10, 3)
    assert [each.at for each in found.actions if each is not None] == ["boundary"] * 3


def test_the_kill_comes_late_and_checkpoints_before_it() -> None:
    found = series.killed(50)
    assert (found.actions, found.every) == ((Action("kill", 30), None), 5)


@pytest.mark.parametrize(("changed", "extra"), [(9, [9]), (6, []), (10, [])])
def test_a_notice_comes_behind_the_last_first_change_of_a_variable(changed: int, extra: list[int]) -> None:
    """A rate that the script lowers once, behind all other notices. At the last step no turn would show it."""
    looks = [boundary(n, variables={"step": str(n), "rate": str(n >= changed)}) for n in range(11)]
    found = series.preempted(record(*looks), 10, 3)
    assert [each.step for each in found.actions if each is not None] == [2, 5, 8, *extra]


@pytest.mark.parametrize(("turns", "killed_at"), [([4, 7], 3), ([], None), ([10], None)])
def test_the_machine_is_lost_behind_the_first_save_by_hand(turns: list[int], killed_at: int | None) -> None:
    """One that a turn follows."""
    looks = [boundary(n, turn=[("guard.save()", "", "")] * (n in turns)) for n in range(11)]
    found = [each.actions for each in series.around_events(record(*looks), 10)]
    assert found == ([] if killed_at is None else [(Action("kill", killed_at, "guard.save()"), None)])


def test_an_event_has_a_notice_before_it_in_it_and_after_it() -> None:
    (found,) = series.around_events(met(save=[4, 8]), 10)
    assert found.name == "save"
    assert found.actions == (Action("preempt", 3), Action("preempt", 3, "save"), Action("preempt", 4), None)


@pytest.mark.parametrize("turns", [[], [1], [10], list(range(11))])
def test_an_event_at_an_end_or_in_each_turn_has_none(turns: list[int]) -> None:
    """A teacher's forward without gradients in every turn is no evaluation."""
    assert [*series.around_events(met(evaluation=turns), 10)] == []


def test_events_around_which_nothing_can_be_tried_are_named() -> None:
    """Those that no turn has, and those of the first turn or the last alone. Not those of each turn, and no pass without a loader."""
    assert series.not_tried(met(evaluation=[3], iterator=[1]), 10) == ["epoch end", "save"]
    assert series.not_tried(met(evaluation=[1], save=[10]), 10) == ["evaluation", "save"]
    assert series.not_tried(met(evaluation=range(11)), 10) == ["save"]


def test_an_event_behind_which_each_life_begins_is_passed_over() -> None:
    (of,) = series.around_events(met(save=[4, 8]), 10)
    lives = [life("save", 0, 4), life("save", 4, 5), life("save", 5, 10)]
    assert series.passed_over(of, lives)
    assert not series.passed_over(of, [lives[0], life("save", 3, 4), lives[1]])
    assert not series.passed_over(of, lives[:1]), "another series has ended this one"


class Scripted(Runner):
    """Has each life end as it is told to; nothing is started."""

    def __init__(self, lives: Sequence[Life]) -> None:
        super().__init__(["train"], os.environ, 10, 1.0, Path("/nowhere"), SystemClock())
        self._lives = list(lives)
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def live(self, ground: Ground, name: str, action: Action | None, every: int = 0) -> Life:
        with self._lock:
            self.asked.append(name)
            return self._lives.pop(0)


def life(
    name: str,
    began: int,
    last: int,
    *,
    taken: bool = False,
    code: int = 0,
    elsewhere: str = "",
    words: str = "ValueError: no",
) -> Life:
    """
    Args:
        words: what it has printed last.
    """
    looks = record(*(boundary(n) for n in range(began, last + 1)), elsewhere=elsewhere)
    return Life(name, [looks], code, taken, 1.0, OpenedFiles({}), words, Path("/console"), Path("/work"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "base").mkdir()
    return tmp_path


def run(
    folder: Path, *lives: Life, actions: Sequence[Action | None] = (None,), differs: str = ""
) -> SeriesRunner:
    """
    Args:
        differs: the name of a life that differs from an undisturbed one.
    """
    made = SeriesRunner(
        Scripted(lives), Original(folder / "work"), folder / "base", folder / "startup", 1, lambda line: None
    )
    made.run([LifeSeries("preempted", tuple(actions))], lambda life: "ema" if life.name == differs else "")
    return made


TWICE = (Action("preempt", 3), Action("preempt", 6), None)


def test_each_life_goes_on_where_the_one_before_was_ended(folder: Path) -> None:
    made = run(
        folder, life("a", 0, 3, taken=True), life("b", 3, 6, taken=True), life("c", 6, 10), actions=TWICE
    )
    assert [each.began for each in made.lives["preempted"]] == [0, 3, 6]
    assert not (folder / "base" / "preempted" / "work").exists(), "the copy is gone with its last life"


def test_a_life_that_differs_ends_its_series(folder: Path) -> None:
    lives = [life("a", 0, 3, taken=True), life("b", 3, 6, taken=True), life("c", 6, 10)]
    made = run(folder, *lives, actions=TWICE, differs="b")
    assert [each.name for each in made.lives["preempted"]] == ["a", "b"]
    assert made.written == {}


@pytest.mark.parametrize("fail_fast", [False, True])
def test_fail_fast_ends_the_other_series_too(folder: Path, fail_fast: bool) -> None:
    ways = (Action("preempt", 3), None)
    lives = [life("a", 0, 3, taken=True), life("b", 3, 10), life("c", 0, 3, taken=True), life("d", 3, 10)]
    scripted, said = Scripted(lives), list[str]()
    made = SeriesRunner(scripted, Original(folder / "work"), folder / "base", folder, 1, said.append)
    made.run(
        [LifeSeries("preempted", ways), LifeSeries("killed", ways)],
        lambda life: "ema differs at step 4" if life.name == "b" else "",
        fail_fast=fail_fast,
    )
    assert "b: INEXACT: ema differs at step 4" in said
    assert scripted.stop.is_set() is fail_fast
    assert fail_fast or [len(of) for of in made.lives.values()] == [2, 2]


def test_a_series_that_is_completed_has_the_files_that_it_wrote(folder: Path) -> None:
    class Writing(Scripted):
        def live(self, ground: Ground, name: str, action: Action | None, every: int = 0) -> Life:
            (ground.workdir / "best.pt").write_text(name)
            return super().live(ground, name, action, every)

    (folder / "work" / "train.py").write_text("")
    scripted = Writing([life("a", 0, 3, taken=True), life("b", 3, 10)])
    made = SeriesRunner(scripted, Original(folder / "work"), folder / "base", folder, 1, lambda line: None)
    made.run([LifeSeries("preempted", (Action("preempt", 3), None))])
    assert [*made.written["preempted"]] == ["best.pt"]


def test_the_time_of_all_series_is_that_of_one_that_lasts_or_of_all_jobs(folder: Path) -> None:
    made = SeriesRunner(Scripted([]), Original(folder), folder, folder, 2, lambda line: None)
    short, long = LifeSeries("killed", (None,) * 2), LifeSeries("preempted", (None,) * 5)
    assert made.seconds([short, long], 10.0) == 50.0
    assert made.seconds([short] * 4, 10.0) == 40.0


def test_a_resume_at_step_0_proves_nothing(folder: Path) -> None:
    with pytest.raises(ProveError, match=r"'b' began at step 0 .* nothing was proven"):
        run(folder, life("a", 0, 3, taken=True), life("b", 0, 10), actions=TWICE)


def test_a_run_that_begins_from_another_one_is_a_finding(folder: Path) -> None:
    made = run(folder, life("a", 0, 3, taken=True), life("b", 0, 10, elsewhere="base"), actions=TWICE)
    assert len(made.lives["preempted"]) == 2


def test_a_life_that_nothing_has_ended_proves_nothing(folder: Path) -> None:
    """The kill waits for a checkpoint, which did not come."""
    with pytest.raises(ProveError, match="came to step 10 and was not ended before it"):
        run(folder, life("a", 0, 10), actions=(Action("kill", 6), None))


def test_a_command_that_fails_by_itself_proves_nothing(folder: Path) -> None:
    with pytest.raises(ProveError, match="'plain-1' ended with exit code 1: ValueError: no"):
        run(folder, life("plain-1", 0, 3, code=1))


def test_a_full_disk_is_no_finding(folder: Path) -> None:
    words = "OSError: [Errno 28] No space left on device"
    with pytest.raises(ProveError, match="No space left on device; run the command by itself"):
        run(folder, life("a", 0, 3, taken=True), life("b", 3, 3, code=1, words=words), actions=TWICE)


def test_a_resumed_command_that_fails_is_a_finding(folder: Path) -> None:
    made = run(folder, life("a", 0, 3, taken=True), life("b", 3, 3, code=1), actions=TWICE)
    assert made.lives["preempted"][-1].failed == "exit code 1: ValueError: no"


def test_the_first_error_ends_the_other_lives(folder: Path) -> None:
    scripted = Scripted([life("plain-1", 0, 3, code=1), life("plain-2", 0, 10)])
    made = SeriesRunner(scripted, Original(folder / "work"), folder / "base", folder, 1, lambda line: None)
    with pytest.raises(ProveError):
        made.run(UNDISTURBED)
    assert scripted.stop.is_set()


class InterruptedAtTheSecond(list[LifeSeries]):
    """Ctrl-C comes when the first series has been started, and not yet the second."""

    def __iter__(self) -> Iterator[LifeSeries]:
        self.begun = getattr(self, "begun", 0) + 1
        yield self[0]
        if self.begun == 2:
            raise KeyboardInterrupt
        yield from self[1:]


def test_ctrl_c_while_lives_are_started_ends_those_that_run(folder: Path) -> None:
    class Waiting(Scripted):
        def live(self, ground: Ground, name: str, action: Action | None, every: int = 0) -> Life:
            assert self.stop.wait(100)
            raise KeyboardInterrupt

    made = SeriesRunner(Waiting([]), Original(folder / "work"), folder / "base", folder, 2, lambda line: None)
    series = InterruptedAtTheSecond([LifeSeries("plain-1", (None,)), LifeSeries("plain-2", (None,))])
    with pytest.raises(KeyboardInterrupt):
        made.run(series)
    assert made.count == 0
