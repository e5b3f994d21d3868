"""When a run stands still for too long, whose fault it seems to be, and what becomes of it."""

from __future__ import annotations

import logging
import signal
from typing import Any

import pytest

from spotguard.agent.actions import (
    ExcludeMachine,
    FollowMachines,
    Launch,
    Log,
    RecordFailure,
    ReportEvent,
    Send,
    SignalSession,
)
from spotguard.agent.config.parsers import recover
from spotguard.agent.core.ending.stall_response import STALL_WINDOW
from spotguard.agent.core.failures.stall import HEALING, SILENT
from spotguard.agent.events import MachineSeen, Signalled
from spotguard.hooks.ipc.failures.phase_times import ENOUGH, LEAST, TIMES, PhaseTimes
from spotguard.hooks.ipc.protocol import STALL, Bye, Failed, Position, Preempt, Resume, WatchMachines
from tests.fakes.story import Story

FIRST = 1800.0


class Run:
    """A story in which ranks report their positions every two seconds."""

    def __init__(self, ranks: int = 1, world: int = 0, **policy: Any) -> None:
        self.story = Story(**policy)
        self.ranks = [self.story.opens(501 + rank, rank=rank, world=world or ranks) for rank in range(ranks)]
        self.mode = "window"
        self.step = 0
        self._moved = [self.story.now] * ranks
        self._times = [PhaseTimes() for _ in self.ranks]

    def trains(self, steps: int = ENOUGH + 1, phase: str = "forward", *, still: float = 0.0) -> None:
        """Complete steps, each of which stands still for some seconds on its way."""
        for _ in range(steps):
            self.step += 1
            self._moved = [self.story.now] * len(self.ranks)
            self.stands(still + 2, *[phase] * len(self.ranks))

    def stands(self, seconds: float, *phases: str) -> None:
        """All ranks stay in their phase."""
        end = self.story.now + seconds
        while self.story.now < end:
            self.story.now = min(self.story.now + 2, end)
            for rank, phase in enumerate(phases):
                self.says(rank, phase)

    def moves(self, rank: int, phase: str) -> None:
        """This rank has moved just now."""
        self._moved[rank] = self.story.now
        self.says(rank, phase)

    def says(self, rank: int, phase: str) -> None:
        still = self.story.now - self._moved[rank]
        where = f"train.py:{10 + rank} in main"
        limit = self._times[rank].look(phase, still, self.step, self.story.now)
        position = Position(self.step, phase=phase, still=still, where=where, limit=limit, mode=self.mode)
        self.story.says(self.ranks[rank], position)

    @property
    def told(self) -> list[int]:
        """The sessions that were told of a stall."""
        return [number for number, message in self.story.sent(Preempt) if message.kind == STALL]

    @property
    def warnings(self) -> list[str]:
        return [each.text for each in self.story.all(Log) if each.level == logging.WARNING]


def test_a_run_that_stands_still_is_saved_and_goes_on() -> None:
    run = Run()
    run.trains()
    run.stands(LEAST - 4, "data")
    assert run.told == []
    run.stands(6, "data")
    assert run.told == run.ranks
    ((_, preempt),) = run.story.sent(Preempt)
    assert (preempt.drill, preempt.seconds_left) == (True, STALL_WINDOW)
    assert preempt.detail == (
        "rank 0 (pid 501) in data at train.py:10 in main: no progress of the run for 60 s, 60 s are the limit"
    )
    (event,) = [each.facts for each in run.story.all(ReportEvent) if each.kind == "stall"]
    assert run.story.machine.stalls.limit((1000, event["run_id"])) == 60.0
    assert event["then"] == f"the stacks lie below {event['run_id']}/stalls; nothing is ended"
    assert run.warnings == [f"training stands still: {preempt.detail}, notifying 1 training process(es)"]
    run.story.commits(run.ranks[0], run.step)
    assert [number for number, _ in run.story.sent(Resume)] == run.ranks
    (outcome,) = run.story.outcomes
    assert (outcome.kind, outcome.drill, outcome.step, outcome.ended) == (
        "stall",
        True,
        run.step,
        "nothing is ended",
    )
    assert run.story.signals == []


def test_a_stall_is_told_once_until_training_moves() -> None:
    run = Run()
    run.trains()
    run.stands(LEAST + 2, "data")
    run.story.commits(run.ranks[0], run.step)
    run.stands(10 * LEAST, "data")
    assert len(run.told) == 1
    run.trains()
    run.stands(TIMES * LEAST - 4, "data")
    assert len(run.told) == 1  # what lasted so long once may last again
    run.stands(6, "data")
    assert len(run.told) == 2
    assert any("moves again at step" in each.text for each in run.story.all(Log))


@pytest.mark.parametrize("still", [4.0, 30.0])
def test_the_usual_time_of_a_phase_makes_its_limit(still: float) -> None:
    run = Run()
    run.trains(2 * ENOUGH, "collective", still=still)
    usual = still + 2
    run.stands(max(LEAST, TIMES * usual) - usual - 4, "collective")
    assert run.told == []
    run.stands(2 * usual, "collective")
    assert run.told == run.ranks


def test_the_first_of_a_phase_has_more_time() -> None:
    """A first step compiles, and nothing is usual in a first evaluation."""
    run = Run()
    run.stands(FIRST - 4, "forward")
    run.trains()
    run.stands(FIRST - 4, "evaluation")
    assert run.told == []
    run.stands(6, "evaluation")
    assert run.told == run.ranks


@pytest.mark.parametrize("phase", ["save", ""])
def test_a_wait_for_a_save_is_no_stall(phase: str) -> None:
    run = Run()
    run.trains()
    run.stands(10 * FIRST, phase)
    assert run.told == []


def test_a_rank_that_moves_excuses_the_others() -> None:
    """They wait for its evaluation."""
    run = Run(2)
    run.trains()
    for _ in range(100):
        run.stands(LEAST / 2, "collective")
        run.moves(1, "evaluation")
    assert run.told == []


def test_a_process_that_tells_nothing_is_stopped_and_does_not_stall() -> None:
    run = Run(2)
    run.trains()
    run.stands(10 * LEAST, "collective")
    assert run.told == []


def test_the_rank_outside_a_collective_is_named() -> None:
    run = Run(3)
    run.trains()
    run.stands(LEAST + 2, "collective", "data", "backward")
    assert run.told == run.ranks
    assert "rank 1 (pid 502) in data at train.py:11 in main" in run.warnings[0]


def test_a_notice_breaks_the_save_of_a_stall_off() -> None:
    """The machine's end wins."""
    run = Run()
    run.trains()
    run.stands(LEAST + 2, "data")
    run.story.notice()
    assert [message.kind for _, message in run.story.sent(Preempt)] == [STALL, "terminate"]
    (outcome,) = run.story.outcomes
    assert (outcome.ended, outcome.failed) == ("broken off: a real notice came", False)
    last = [each.message for each in run.story.all(Send)][-2:]
    assert [type(each) for each in last] == [
        Preempt,
        Resume,
    ]  # let go first, it would obey a SIGTERM that it holds


def test_a_training_that_moves_again_is_let_go() -> None:
    run = Run()
    run.trains()
    run.stands(LEAST + 2, "data")
    run.moves(0, "forward")
    assert [number for number, _ in run.story.sent(Resume)] == run.ranks
    assert [each.ended for each in run.story.outcomes] == ["broken off: training moves again"]


def test_a_drill_takes_the_place_of_a_stall() -> None:
    run = Run()
    run.trains()
    run.stands(LEAST + 2, "data")
    run.story.asks()
    assert [message.kind for _, message in run.story.sent(Preempt)] == [STALL, "drill"]


def test_a_function_of_on_notice_hears_of_no_stall() -> None:
    run = Run()
    run.story.opens(501, store="")
    run.trains()
    run.stands(LEAST + 2, "data")
    assert run.told == run.ranks


def test_a_state_that_cannot_be_saved_where_it_stands_is_told_and_left() -> None:
    run = Run()
    run.mode = "boundary"
    run.trains()
    run.stands(LEAST + 2, "data")
    assert run.told == []
    assert "saves wait for the next guard.step() [SG406]" in run.warnings[0]


def test_ranks_that_wait_for_another_machine_have_more_time() -> None:
    run = Run(2, world=4)
    run.trains()
    run.stands(FIRST - 100, "collective", "backward")
    assert run.told == []
    run.stands(2 * FIRST, "collective", "data")
    assert run.told == run.ranks


# --- before training ---


def test_a_hang_before_training_is_told_at_the_longest_limit_and_has_nothing_to_save() -> None:
    """The rank that the others wait for is named."""
    run = Run(3)
    run.stands(FIRST - 4, "collective", "start", "ranks")
    assert run.told == []
    run.stands(6, "collective", "start", "ranks")
    assert run.told == run.ranks
    assert run.warnings == [
        "training stands still: rank 1 (pid 502) in start at train.py:11 in main: no progress of the run for 1800 s, 1800 s are "
        "the limit; there is nothing to save before training, notifying 3 training process(es)"
    ]
    for rank, message in run.story.sent(Preempt):
        run.story.says(rank, Failed(message.id, "training has not begun yet", -1))
    assert [number for number, _ in run.story.sent(Resume)] == run.ranks
    assert run.story.signals == []


def test_a_rank_that_restores_excuses_the_others() -> None:
    run = Run(2)
    for _ in range(3):
        run.stands(FIRST - 100, "start", "ranks")
        run.moves(0, "start")
    assert run.told == []


def test_a_wait_for_ranks_of_another_machine_before_training_is_no_stall() -> None:
    """That machine's agent sees the rank that stands, and the wait has limits of its own."""
    run = Run(2, world=4)
    run.stands(3 * FIRST, "ranks", "ranks")
    assert run.told == []


# --- heartbeats ---

WHERE = "10.0.0.2 4000 0123456789abcdef"


def beside(**policy: Any) -> Run:
    """Two ranks here and two on another machine, whose heartbeats are heard."""
    run = Run(2, world=4, **policy)
    run.story.says(run.ranks[0], WatchMachines({WHERE: "node2"}))
    seen(run)
    run.trains()
    return run


def seen(run: Run, silent_since: float | None = None, *, ended: bool = False) -> None:
    runs = frozenset(session.run for session in run.story.machine.sessions.values())
    run.story.on(MachineSeen(runs, "node2", silent_since, ended))


def test_ranks_that_wait_for_a_silent_machine_are_saved_at_once() -> None:
    run = beside()
    last = run.story.now
    run.stands(4, "collective", "backward")
    seen(run, last)
    run.stands(SILENT - 6, "collective", "backward")
    assert run.told == []
    run.stands(4, "collective", "backward")
    assert run.told == run.ranks
    assert run.warnings[0] == "machine node2 of run run is silent: no heartbeat for 4 s"
    assert run.warnings[1].startswith("training stands still: machine node2 is silent; rank 0 (pid 501)")
    (stall,) = [each.facts for each in run.story.all(ReportEvent) if each.kind == "stall"]
    assert stall["machine"] == "node2"


@pytest.mark.parametrize("phases", [("start", "ranks"), ("collective", "start")])
def test_a_silent_machine_shortens_no_limit_before_training(phases: tuple[str, str]) -> None:
    """A restore may wait for its store for longer than ten seconds."""
    run = beside()
    last = run.story.now
    run.stands(4, *phases)
    seen(run, last)
    run.stands(FIRST - 100, *phases)
    assert run.told == []


def test_a_silence_while_training_moves_saves_nothing() -> None:
    """The heartbeats' way is blocked, and training's is not."""
    run = beside()
    seen(run, run.story.now)
    run.trains(20)
    run.stands(
        FIRST - 100, "evaluation", "collective"
    )  # a rank here evaluates: nobody waits for the silent machine
    assert run.told == []
    assert run.story.machine.stalls.silent == [("run", "node2")]


def test_a_network_that_heals_in_time_saves_nothing() -> None:
    run = beside()
    last = run.story.now
    run.stands(4, "collective", "backward")
    seen(run, last)
    run.stands(4, "collective", "backward")
    seen(run)
    run.stands(60, "collective", "backward")
    assert run.told == []
    assert run.warnings[1] == "machine node2 of run run answers again after 8 s"
    assert run.story.machine.stalls.silent == []


def test_an_agent_elsewhere_that_has_ended_leaves_the_usual_patience() -> None:
    run = beside()
    seen(run, ended=True)
    run.stands(FIRST - 100, "collective", "backward")
    assert run.told == []


def test_a_silent_machines_run_is_ended_no_sooner_than_another() -> None:
    """A network may heal in a minute."""
    run = beside(recover=recover("--recover", "stall=restart"))
    seen(run, run.story.now)
    run.stands(SILENT + 2, "collective", "backward")
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.stands(2 * HEALING - SILENT - 6, "collective", "backward")
    assert "restart" not in [message.kind for _, message in run.story.sent(Preempt)]
    run.stands(6, "collective", "backward")
    assert "restart" in [message.kind for _, message in run.story.sent(Preempt)]


def test_heartbeats_are_exchanged_while_a_rank_is_here() -> None:
    run = beside()
    (begun,) = run.story.all(FollowMachines)
    assert begun.machines == {WHERE: "node2"}
    run.story.closes(run.ranks[0])
    assert len(run.story.all(FollowMachines)) == 1
    run.story.closes(run.ranks[1])
    assert run.story.all(FollowMachines)[1:] == [FollowMachines(begun.run, None)]
    seen(run, 1.0)
    assert run.story.machine.stalls.silent == []


def test_a_run_that_watches_no_machine_is_over_when_its_last_rank_has_left() -> None:
    """It may have a secret for those that watch it. A rank that can name no machine does not end it."""
    run = Run(2, world=4)
    run.story.says(run.ranks[0], WatchMachines({"localhost 4242 x": "node2"}))
    run.story.closes(run.ranks[0])
    (begun,) = run.story.all(FollowMachines)
    assert begun.machines == {}
    run.story.closes(run.ranks[1])
    assert run.story.all(FollowMachines)[1:] == [FollowMachines(begun.run, None)]


def test_a_place_at_which_no_agent_can_be_is_left_out() -> None:
    """Any process may write to the socket."""
    run = Run(2, world=4)
    wrong = ["", "10.0.0.2", "host 1 x", "10.0.0.2 0 x", "10.0.0.2 99999 x", "10.0.0.2 1 ", "10.0.0.2 1 x y", "10.0.0.2 1 " + "x" * 65, "10.0.0.2 " + "1" * 5000 + " x", "127.0.0.1 1 x", "169.254.169.254 80 x", "10.0.0.2 1 \ud800"]  # fmt: skip
    run.story.says(run.ranks[0], WatchMachines(dict.fromkeys([*wrong, WHERE], "node2")))
    (begun,) = run.story.all(FollowMachines)
    assert begun.machines is not None
    assert [*begun.machines] == [WHERE]


def test_a_pause_that_returns_is_told_once() -> None:
    """However many steps are between: an epoch's end, at which the loader fills its buffer."""
    run = Run()
    for _ in range(4):
        run.step += 600
        run.trains()
        run.stands(120, "data")
        run.story.on(None)
        if run.story.machine.preemption is not None:
            run.story.commits(run.ranks[0], run.step)
    assert len(run.told) == 1


def test_a_process_keeps_its_history_when_its_connection_ends() -> None:
    run = Run()
    run.trains()
    run.story.closes(run.ranks[0], alive=True)
    run.ranks = [run.story.opens(501)]
    run.stands(LEAST + 2, "data")
    assert run.told == run.ranks


@pytest.mark.parametrize("how", ["off", "older", "over"])
def test_nothing_is_looked_for(how: str) -> None:
    """It is switched off; the hook is older and does not tell; or training has ended by itself."""
    run = Run(stall_first=None if how == "off" else FIRST)
    run.trains()
    if how == "over":
        run.story.says(run.ranks[0], Bye())
    for _ in range(200):
        run.story.now += 2
        if how == "older":
            run.story.says(run.ranks[0], Position(run.step))
        else:
            run.says(0, "data")
    assert run.told == []


# --- `--recover stall=…` ---


def recovering(text: str, **policy: Any) -> Run:
    run = Run(2, recover=recover("--recover", text), **policy)
    run.trains()
    return run


def stalls_for_good(run: Run) -> None:
    """Both ranks are saved where they stand, and stand on."""
    run.stands(LEAST + 2, "data", "collective")
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.stands(LEAST + 2, "data", "collective")


def test_a_saved_training_that_stands_for_twice_its_limit_ends_and_starts_again() -> None:
    run = recovering("stall=restart:2")
    stalls_for_good(run)
    assert run.story.outcomes[0].ended == "--recover stall=restart follows at twice the limit"
    assert [message.kind for _, message in run.story.sent(Preempt)][2:] == ["restart", "restart"]
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.story.until(run.story.now - 1000 + 20)
    assert signal.SIGTERM in run.story.signals
    for rank in run.ranks:
        run.story.closes(rank)
    run.story.ends(-15)
    assert [each.failure for each in run.story.all(Launch)] == ["", "stall"]
    assert run.story.machine.restarts == 1
    assert any("restart 1 of 2 for stall" in text for text in run.warnings)


@pytest.mark.parametrize(
    ("rules", "launcher", "ends"),
    [
        ("stall=restart", False, True),
        ("stall=stop", False, True),
        ("stall=leave", False, True),
        ("stall=restart", True, False),
    ],
)
def test_the_runs_that_end_with_a_stalled_one_are_named(rules: str, launcher: bool, ends: bool) -> None:
    """They are below one command. A function of `on_notice` is no run, and a launcher's rank is killed alone."""
    run = recovering(rules, launcher_restarts=launcher)
    for pid, name, store in (
        (601, "second", "file:///s"),
        (602, "other", "file:///s"),
        (603, "function", ""),
    ):
        run.story.says(run.story.opens(pid, run=name, store=store), Position(5))
    stalls_for_good(run)
    named = [text for text in run.warnings if "end with run" in text]
    assert named == ["other runs of the command end with run run: other, second"] * ends


def test_a_training_that_moves_again_is_not_ended() -> None:
    run = recovering("stall=restart")
    run.stands(LEAST + 2, "data", "collective")
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.moves(0, "data")
    run.stands(LEAST, "data", "collective")
    assert "restart" not in [message.kind for _, message in run.story.sent(Preempt)]
    assert run.story.signals == []


def test_a_save_in_progress_is_waited_for() -> None:
    """It may take longer than twice the limit."""
    run = recovering("stall=restart")
    run.stands(3 * LEAST, "data", "collective")
    assert "restart" not in [message.kind for _, message in run.story.sent(Preempt)]
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.stands(4, "data", "collective")
    assert "restart" in [message.kind for _, message in run.story.sent(Preempt)]


def test_below_a_launcher_that_restarts_only_the_cause_is_killed() -> None:
    run = recovering("stall=restart", launcher_restarts=True)
    stalls_for_good(run)
    assert run.story.all(SignalSession) == [SignalSession(run.ranks[0], signal.SIGKILL)]
    (record,) = run.story.all(RecordFailure)
    facts = record.facts
    assert (facts["class"], facts["rank"], facts["step"]) == ("stall", 0, run.step)
    assert facts["text"].endswith("was killed, so that its launcher starts the ranks again")
    run.stands(50, "data", "collective")
    assert "restart" not in [message.kind for _, message in run.story.sent(Preempt)]
    assert run.story.signals == []


def test_a_launcher_that_does_not_start_the_ranks_again_is_started_again() -> None:
    """The killed rank does not end, for it stands in the kernel; or the launcher hangs, too."""
    run = recovering("stall=restart", launcher_restarts=True)
    stalls_for_good(run)
    run.stands(70, "data", "collective")
    assert "restart" in [message.kind for _, message in run.story.sent(Preempt)]
    assert len(run.story.all(SignalSession)) == 1


def test_a_launcher_without_a_restart_left_ends_by_the_stall_and_not_by_our_kill() -> None:
    run = recovering("stall=restart:1,killed=stop", launcher_restarts=True)
    stalls_for_good(run)
    for rank in run.ranks:
        run.story.closes(rank)
    run.story.ends(1)
    assert [each.rules["stall"] for each in run.story.all(Launch)] == [("restart", 0), ("restart", 1)]
    assert run.story.machine.failure is not None
    assert run.story.machine.failure.kind == "stall"


def test_a_training_that_stands_for_good_may_end_the_run() -> None:
    run = recovering("stall=stop")
    stalls_for_good(run)
    assert run.story.killed
    assert "restart" not in [message.kind for _, message in run.story.sent(Preempt)]
    for rank in run.ranks:
        run.story.closes(rank)
    run.story.ends(-9)
    assert (run.story.code, len(run.story.all(Launch))) == (1, 1)  # 137 would be a lack of memory


def test_a_person_who_ends_a_run_that_is_being_killed_changes_no_exit_code() -> None:
    run = recovering("stall=stop")
    stalls_for_good(run)
    run.story.on(Signalled(signal.SIGINT))
    for rank in run.ranks:
        run.story.closes(rank)
    run.story.ends(-9)
    assert run.story.code == 1


@pytest.mark.parametrize("action", ["stop", "restart"])
def test_ranks_that_their_launcher_left_behind_stand_until_they_end_as_its_own(action: str) -> None:
    run = recovering(f"stall={action}")
    run.stands(LEAST + 2, "data", "collective")
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.stands(LEAST - 10, "data", "collective")
    run.story.ends(3)
    run.stands(25, "data", "collective")
    for rank in run.ranks:
        run.story.closes(rank)
    run.story.on(None)
    assert (run.story.code, len(run.story.all(Launch))) == (3, 1)
    assert not run.story.killed


def test_a_training_that_stands_for_good_may_leave_the_machine() -> None:
    """The other machines learn of it as of a machine that goes."""
    run = recovering("stall=leave")
    stalls_for_good(run)
    assert [message.kind for _, message in run.story.sent(Preempt)][2:] == ["signal", "signal"]
    ends_after_commits(run)
    assert (run.story.code, len(run.story.all(Launch))) == (75, 1)


@pytest.mark.parametrize(
    ("silent", "phases", "excluded"),
    [
        (True, ("collective", "backward"), [ExcludeMachine("node2", "stall")]),
        (False, ("data", "collective"), [ExcludeMachine("", "stall")]),
        (False, ("collective", "backward"), []),
    ],
)
def test_the_machine_that_is_left_for_a_stall_is_its_cause_if_that_is_known(
    silent: bool, phases: tuple[str, str], excluded: list[ExcludeMachine]
) -> None:
    """A silent one, or this one, if a rank here waits for no other; who waits in a collective has no culprit here."""
    run = beside(recover=recover("--recover", "stall=leave"), excludes=True, stall_first=LEAST)
    if silent:
        seen(run, run.story.now)
    run.stands(LEAST + 2, *phases)
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.stands(LEAST + 2, *phases)
    assert run.story.all(ExcludeMachine) == excluded


def test_a_stall_of_a_job_of_one_machine_is_of_that_machine() -> None:
    run = recovering("stall=leave", excludes=True)
    run.stands(LEAST + 2, "collective", "collective")
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.stands(LEAST + 2, "collective", "collective")
    assert run.story.all(ExcludeMachine) == [ExcludeMachine("", "stall")]


def test_a_stall_labels_no_node() -> None:
    """On a file system that hangs, ranks of every machine wait for no other rank, and each agent decides alone."""
    run = beside(recover=recover("--recover", "stall=leave"), node="n7", stall_first=LEAST)
    run.stands(LEAST + 2, "data", "data")
    for rank in run.ranks:
        run.story.commits(rank, run.step)
    run.stands(LEAST + 2, "data", "data")
    assert run.story.all(ExcludeMachine) == []
    assert any("node n7 is not labelled" in each.text for each in run.story.all(Log))


def ends_after_commits(run: Run) -> None:
    for rank in run.ranks:
        run.story.commits(rank, run.step)
        run.story.closes(rank)
    run.story.ends(-15)
    run.story.until(run.story.now - 1000 + 20)


def test_a_notice_during_the_restart_reaches_the_sessions_and_wins() -> None:
    run = recovering("stall=restart")
    stalls_for_good(run)
    run.story.notice(120)
    assert [message.kind for _, message in run.story.sent(Preempt)][-2:] == ["terminate", "terminate"]
    ends_after_commits(run)
    assert (run.story.code, len(run.story.all(Launch))) == (75, 1)


def test_a_notice_that_is_withdrawn_leaves_the_restart() -> None:
    run = recovering("stall=restart:1")
    stalls_for_good(run)
    run.story.notice(120)
    run.story.gone()
    ends_after_commits(run)
    assert len(run.story.all(Launch)) == 2
    assert any("training stood still, restart 1 of 1 for stall" in text for text in run.warnings)


def test_a_person_who_ends_the_restart_ends_the_run() -> None:
    run = recovering("stall=restart")
    stalls_for_good(run)
    run.story.signal(signal.SIGINT)
    for rank in run.ranks:
        run.story.closes(rank)
    run.story.ends(-2)
    run.story.until(run.story.now - 1000 + 20)
    assert (run.story.code, len(run.story.all(Launch))) == (130, 1)


def test_a_start_that_fails_after_a_restart_is_judged_by_its_own_failure() -> None:
    """Nothing is waited for on a single machine."""
    run = recovering("stall=restart:1,program=stop")
    stalls_for_good(run)
    ends_after_commits(run)
    assert len(run.story.all(Launch)) == 2
    run.story.ends(1)
    assert (run.story.code, len(run.story.all(Launch))) == (1, 2)


def test_without_a_rule_nothing_is_ended() -> None:
    run = recovering("data=stop")
    stalls_for_good(run)
    run.stands(100 * LEAST, "data", "collective")
    assert "restart" not in [message.kind for _, message in run.story.sent(Preempt)]
    assert run.story.signals == []


def test_a_stall_and_its_end_are_incidents_once_each() -> None:
    run = Run()
    run.trains()
    run.stands(LEAST + 20, "forward")
    run.trains(2)
    kinds = [each.kind for each in run.story.all(ReportEvent) if each.kind in ("stall", "moving")]
    assert kinds == ["stall", "moving"]
    (stall,) = [each.facts for each in run.story.all(ReportEvent) if each.kind == "stall"]
    assert (stall["rank"], stall["phase"], stall["where"]) == (0, "forward", "train.py:10 in main")
    assert stall["seconds"] >= LEAST
