"""Each benchmark runs to its end, with sizes that say nothing about speed, and yields the rows that are promised."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")

# The root is on sys.path for these two lines only: left there, `import hooks` would make a second class of each name.
sys.path.append(root := str(Path(__file__).parent.parent))
from benchmarks import charts, growth
from benchmarks.__main__ import NAMES, run
from benchmarks.ettr_replay import SPELLS, JobReplay
from benchmarks.failures import followed, named_in
from benchmarks.interruptions import LOST, PREEMPTION, InterruptionCost, Start, useful
from benchmarks.link_rows import RAW, Sample
from benchmarks.plots import draw
from benchmarks.replay import Job, Lost, Notice, live
from benchmarks.rows import Row, Unable, table
from benchmarks.scenes import SCENES
from benchmarks.stall_replay import Record, replayed
from benchmarks.took import Took
from benchmarks.trace import CLOUDS as PREEMPTIONS
from benchmarks.trace import missed
from benchmarks.watched import CLOUDS
from benchmarks.watching import RUN_ID, played

sys.path.remove(root)

from tests.e2e.promql import dashboard, unanswered

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

#: Benchmark -> how its rows begin, in order.
ROWS = {
    "audit": [
        "slices of the first 200 boundaries, 0.1 GB",
        "turns in which they come round, 0.1 GB",
        "slices of later boundaries, 0.1 GB",
        "turns in which they come round, 0.1 GB",
        "checksums of all for a background checkpoint, 0.1 GB",
        "notice → the training thread is free of a checksum under way, 0.1 GB",
    ],
    "step": [
        "a Python call of nothing",
        "guard.step(), MLP",
        "guard.step(loss=…)",
        "guard.step(), the same",
        *["  of which"] * 5,
        "guard.step(), ResNet-50",
    ],
    "notice": [
        line
        for cloud in CLOUDS.values()
        for line in (f"notice visible → hook told, {cloud.name}", "  of which after the agent read it")
    ],
    "scenarios": [next(scene.row for scene in SCENES if scene.provider == cloud) for cloud in CLOUDS],
    "first_byte": ["hook told → first byte, main thread in torch"],
    "agent": [
        f"{who}: {what}"
        for who in (
            *(
                f"spotguard {way}{metrics}, {cloud.name}"
                for cloud in CLOUDS.values()
                for metrics in ("", " with metrics")
                for way in ("run", "agent")
            ),
            "spotguard run with alerts, AWS",
            "the helper of alerts",
            "spotguard run with heartbeats, training, alerts, AWS",
            "spotguard run with heartbeats, training, alerts with metrics, AWS",
        )
        for what in ("resident", "its proportional", "CPU")
    ],
    "agreement": [
        "call to decision, 2 ranks",
        *(
            f"simulated, 8 ranks with {kind} state: {what}"
            for kind in ("sharded", "replicated")
            for what in (
                "call to decision",
                "operations of the store",
                "operations of one rank, at most",
                "the store works",
            )
        ),
    ],
    "rate": [
        f"{verb} in memory (tmpfs){what}: spotguard"
        for verb in ("save", "restore")
        for what in ("", ", CPU", ", memory beyond the state")
    ],
    "links": [
        "save to S3 at 2000 Mbit/s: time ÷ ideal: spotguard",
        "restore from S3 at 2000 Mbit/s: time ÷ ideal: spotguard",
        *[
            f"save to S3 by {door}, processor: {way}"
            for door in ("HTTP", "HTTPS")
            for way in ("spotg", "a raw")
        ],
        *[f"{verb} S3, memory beyond the state: spotguard" for verb in ("save to", "restore from")],
        "save to S3 through no link",
        "hook told → first byte to S3",
    ],
    "ranks": [
        *[
            f"FSDP2 on 2 ranks{what}: {way}"
            for what in (" at 2000 Mbit/s each, notice → committed ÷ ideal", ", collectives of one save")
            for way in ("spotguard, all", "spotguard, one", "dcp.save")
        ],
        *[
            line
            for layout in ("DDP", "FSDP2")
            for line in (
                f"{layout} on 2 ranks, all noticed: bytes uploaded ÷ state",
                "  of that, each rank",
                f"{layout} on 2 ranks, one noticed: bytes uploaded ÷ state",
                "  of that, the noticed machine's rank",
                "  of that, each of the others",
            )
        ],
    ],
    "background": [
        "training time",
        "  as a share of step time, one",
        "  as a share of step time, one every 60 s",
    ],
    "verifying": ["a step while a checkpoint is verified", "  the most memory of the verifier's process"],
    "early": [
        "32 MiB at 80 Mbit/s, weights committed early: the full save",
        "  its requests (",
        "  the weights' manifest",
    ],
    "trace": [
        line
        for cloud in PREEMPTIONS
        for line in (
            *[f"training lost at a preemption, {cloud.name}: {way}" for way in ("spotg", "perio")],
            *["  not kept of what the window allows"] * bool(cloud.windows),
        )
    ],
    "losses": [
        *["reports in"] * 5,
        *["divergences found"] * 12,
        "  steps until they are",
        "networks found",
        "reports in 1 networks",
        "a look at one loss",
    ],
    "listing": [
        f"4 {what}{more}"
        for what in (
            "runs, a checkpoint each: ls",
            "checkpoints of one run: ls",
            "checkpoints of one run: the first prune of a process, every tenth stays",
            "checkpoints of one run: each prune after it",
            "checkpoints of one run: the choice of a restore",
        )
        for more in ("", ", requests", ", seconds ÷ those at 2")
    ],
    "clean": [
        "recorded, 1 trainings",
        *["  alarms: "] * 5,
        *["  incidents of "] * 2,
        "replayed, 1 runs of 1 records",
        "  alarms of stall",
        "  of them, twice the limit",
        "  a hang at the end of each run, 1 of 1 found",
    ],
    "failures": ["program: from the failure to its name, 1 of 1 right"],
    "manifests": [
        f"manifests of 17 ranks × 20 tensors: {what}"
        for what in (
            "bytes of one",
            "read and checked",
            "memory of that",
            "committed, the store",
            "  of that, until the last",
            "  of that, from there",
            "  of that, the marker",
            "  of that, the index",
            "requests of that",
            "what a machine reads",
            "its index read",
        )
    ],
    "cuts": ["cut for 20 s: until its silence is told", "  from its healing to the next step"],
    "ettr": [
        "ETTR, 2 interruptions in ",
        "  without queueing",
        "  its checkpoints beside training",
        *["preemption: until training goes on", "  steps lost"],
        *["killed: until training goes on", "  steps lost"],
        *[
            f"not effective (100 % − ETTR), {what}: {way}"
            for what in (
                *(f"4 machines, {zone}" for zone in SPELLS),
                "4 machines, all zones",
                "4 machines, all zones, own start 60 s",
                *(f"{machines} machines" for machines in (8, 16, 32)),
            )
            for way in ("spotguard", "periodic checkpoints alone")
        ],
    ],
    "recovery": [
        "kill, spotguard: until the failure is named, 1 of 1",
        "  until training goes on, 1 of 1",
        "  steps trained twice",
    ],
}


#: Those that take five to thirty seconds, tiny as they are: what they measure, other tests show.
LONG = {"agent", "clean", "cuts", "ettr", "failures", "links", "notice", "ranks", "rate", "recovery"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name in LONG)) for name in NAMES]
)
def test_each_benchmark_yields_its_rows(name: str, require_server: Callable[[str], str]) -> None:
    """Tiny, every benchmark yields rows with at least one value each, in the order of the table."""
    if name in ("links", "ranks"):
        for program in ("swift-proxy-server", "memcached", "nginx", "openssl"):
            require_server(program)
    try:
        rows = run(name, tiny=True)
    except Unable as why:
        pytest.skip(str(why))  # namespaces need root

    expected = ROWS[name]
    assert expected == [row.what[: len(start)] for row, start in zip(rows, expected, strict=False)]
    assert all(row.values for row in rows)


def test_the_table_shows_spread_figure_and_peer() -> None:
    """A row shows its median and extremes, how far its figure is, and how it stands to its peer."""
    row = Row("a thing", "ms", (3.0, 1.0, 2.0), figure=4.0, peer=8.0, peer_name="other")

    line = table([row]).splitlines()[2]

    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["a thing", "2.00 ms", "1.00 … 3.00", "3", "≤ 4.00", "0.50", "0.25 × other"]


def test_a_bound_is_judged_by_the_worst_value() -> None:
    """Where a figure holds for every value, one slow value is what the ratio says."""
    row = Row("a thing", "ms", (3.0, 1.0, 2.0), figure=4.0, worst=True)

    assert "0.75" in table([row])


def test_a_failure_is_named_by_the_last_line_that_names_one_and_timed_by_the_first_that_agrees() -> None:
    """A rank hangs up, is named as lost, and the agent puts the end down to the error of another one."""
    error = "training failed: rank 0 (pid 7) at step 5: an error of the program"
    lost = "training failed at step 5: another rank is gone, or does not answer"
    log = [(1.0, "Traceback"), (2.0, f"spotguard[rank 0]: {error}"), (3.0, lost), (9.0, f"ERROR: {error}")]

    assert named_in(log, 0.5) == ("program", 1.5)
    assert named_in(log[:3], 0.5) == ("peer-lost", 2.5)
    assert named_in(log[:1], 0.5)[0] == "nothing"


@pytest.mark.parametrize(
    ("kind", "code", "log", "right"),
    [
        ("repeated", 1, [(1.0, "starting the command again")], True),
        ("repeated", 75, [(1.0, "starting the command again")], False),
        ("repeated", 1, [(1.0, "starting the command again")] * 2, False),
        ("deadline", 75, [(5.0, "COMMITTED")], True),
        ("deadline", 75, [(500.0, "COMMITTED")], False),
        ("deadline", 0, [(5.0, "COMMITTED")], False),
        ("spike", 1, [], False),
    ],
)
def test_the_consequences_of_a_failure_are_judged_too(
    kind: str, code: int, log: list[tuple[float, str]], right: bool
) -> None:
    """The exit code, the number of starts, and a commit that comes before the time is over."""
    assert followed(kind, code, log, 1.0) is right


JOB = Job(8 * 10**9, 1e9)
HOUR = 3600.0


def test_a_notice_with_room_keeps_everything_seed_1() -> None:
    """A save of 8 s in a window of two minutes: nothing is lost, whatever the background checkpoints did."""
    dice = random.Random(1)
    found = [live(JOB, HOUR, Notice(120.0, 12.0, 1.0), dice) for _ in range(50)]
    assert [lost.ours for lost in found] == [0.0] * 50
    assert missed(found) == 0.0
    assert any(lost.periodic > 0 for lost in found)


def test_a_window_that_holds_no_save_keeps_what_background_checkpoints_kept_seed_2() -> None:
    """Nothing of a save that is cut off counts, and none is better than who knew all beforehand."""
    dice = random.Random(2)
    for _ in range(50):
        lost = live(JOB, HOUR, Notice(5.0, 3.0, 1.0), dice)
        assert lost.ours >= lost.allowed
        assert lost.ours > 0 or lost.periodic == 0


def test_without_a_notice_both_lose_the_same_seed_3() -> None:
    dice = random.Random(3)
    for _ in range(50):
        lost = live(JOB, HOUR, None, dice)
        assert lost.ours == lost.periodic == lost.allowed


def test_missed_seconds_are_a_share_of_those_that_could_be_kept() -> None:
    """Of 100 s that periodic checkpoints lose and the window saves 80, 60 were kept: a quarter was missed."""
    assert missed([Lost(ours=40.0, periodic=100.0, allowed=20.0)]) == pytest.approx(25.0)


def test_steps_that_were_trained_again_do_not_count_in_the_time_of_steps() -> None:
    """Two starts of two seconds a step: the second begins at the first one's step 3 of 5, and has steps of one second."""
    first = Start(0.0, tuple((2.0 * step, step) for step in range(6)))
    second = Start(20.0, tuple((20.0 + step, step) for step in range(3, 8)))
    assert useful([first, second]) == pytest.approx(3 * 2.0 + 4 * 1.0)


def test_a_job_over_a_trace_loses_more_without_a_notice_and_with_time_outs() -> None:
    """A guarded job loses its start and its checkpoints alone in one long spell without a preemption but at its end."""
    costs = {
        kind: [InterruptionCost(kind, 20.0, 0, 1)] for kind in (PREEMPTION, LOST, "killed", "stall", "gpu")
    }
    replay = JobReplay(JOB, 4, costs, 0.0, HOUR)
    spells = [2 * HOUR] * 200
    ours, periodic = (
        replay.lived(spells, random.Random(5), guarded=guarded).lost for guarded in (True, False)
    )
    assert 0.0 < ours < periodic < 10.0
    short = replay.lived([10.0], random.Random(5), guarded=True)
    assert (short.wall, short.useful) == (0.0, 0.0)


@pytest.mark.parametrize(("pauses", "alarms"), [((40.0,) * 3, False), ((4.0,) * 3 + (100.0,), True)])
def test_recorded_pauses_are_replayed_in_another_order(
    pauses: tuple[float, ...], alarms: bool, tmp_path: Path
) -> None:
    """Pauses below the limit raise no alarm in any order, a long one among short ones does, and each hang is found."""
    at, step, lines = 0.0, 0, list[str]()
    for pause in pauses:
        for still in [0.0] * 100 + [2.0 * look for look in range(1, int(pause / 2.0) + 1)]:
            at, step = at + 2.0, step + (still == 0.0)
            position = {"rank": 0, "world": 1, "step": step, "phase": "data", "still": still}
            lines.append(json.dumps({"at": at, "ranks": [position]}))
    (path := tmp_path / "plain-0.jsonl").write_text("\n".join(lines))

    hours, stalls, _, hangs = replayed([Record(path)], 8.0, seed=1)

    assert hours.median >= 8.0
    assert (stalls.median > 0) is alarms
    assert len(hangs.values) > 1
    assert min(hangs.values) >= 60.0


def test_the_pictures_show_every_way_and_no_raw_socket_among_the_times(tmp_path: Path) -> None:
    ways = ("spotguard", "DCP <other>", RAW)
    samples = [
        Sample("S3", "http", mbit, "save", way, Took(10**9, 9.0 * number, 1.0), 9.0)
        for mbit in (100, 800)
        for number, way in enumerate(ways, 1)
    ]

    (path,) = draw(samples, folder=tmp_path)

    texts = [each.text for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert [texts.count(way) for way in ways] == [3, 3, 1]
    assert "27.00" not in texts


def test_the_picture_of_growth_has_a_line_for_each_way_and_its_last_figure() -> None:
    """A peer that was not measured at the largest size ends where it was."""
    rows = [
        {"what": f"manifests of {ranks:,} ranks × 2,169 tensors: {what}", "median": ranks / 500, "peer": peer}
        for ranks in (128, 1024, 4096)
        for what, peer in (
            ("read and checked", ranks / 10 if ranks < 4096 else None),
            ("committed, the store 30 ms away at 1 Gbit/s", None),
            ("its index read and checked, and one rank's reads planned", None),
            ("bytes of one", None),
        )
    ]
    picture = growth.draw("2026-11-25", rows)
    texts = [
        each.text or "" for each in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert sum(text.endswith(": 8.19 s") for text in texts) == 3
    assert "DCP: the coordinator's global plan: 102 s" in texts
    assert picture.count("<polyline") == 4
    assert "var(" not in picture


def test_a_chart_shows_each_line_and_breaks_where_nothing_was_recorded() -> None:
    """In its own unit, with its name; too many names are counted."""
    steady = charts.Line("steady", [(1000.0 + second, 2.0) for second in range(60)], dashed=True)
    broken = charts.Line("broken", [(1000.0 + second, 5.0) for second in range(60) if not 20 < second < 40])
    crowd = [charts.Line(f"name {number}", [(1000.0, 0.1 * number)]) for number in range(8)]
    picture = charts.draw(
        [
            charts.Chart("A chart", "s", [steady, broken]),
            charts.Chart("Crowded", "percentunit", crowd),
            charts.Chart("Nothing", "bytes", []),
        ],
        1000.0,
        1060.0,
    )
    ElementTree.fromstring(picture)
    lines = re.findall(r'<polyline points="[^"]*" class="([^"]*)"', picture)
    assert lines[:3] == ["c0 dashed", "c1", "c1"]
    for words in ("A chart", "Nothing", "steady", "broken", "4 s", "60%", "name 4", "and 3 more"):
        assert f">{words}<" in picture, words
    assert "name 5" not in picture


def test_each_chart_that_is_drawn_is_a_panel_of_the_dashboard() -> None:
    titles = {panel["title"] for panel in dashboard()["panels"]}
    assert set(charts.PANELS) <= titles


#: The second attempt, which knows it, leaves before it tells.
EARLIER = "spotguard_earlier_step_seconds"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_machines_day_is_recorded_and_only_its_blindness_alarms(
    tmp_path: Path, require_server: Callable[[str], str]
) -> None:
    """A service and a run through calm, 75 s of blindness, a drill and a preemption, with a real training process: every
    chart has its numbers, and what came of the notice is seen though the run that saw it had ended."""
    with played(tmp_path, require_server("prometheus")) as (prometheus, began):
        ended = time.time()
        unknown = [each for each in unanswered(prometheus, ended - began) if EARLIER not in each]
        assert unknown == []
        alarms = prometheus.query_range('ALERTS{alertstate="firing"}', ended - began, 1.0, ended)
        assert {series["metric"]["alertname"] for series in alarms} == {"SpotguardBlind"}
        assert {series["metric"]["instance"] for series in alarms} == {"node-1", RUN_ID}
        outcomes = f'increase(spotguard_outcomes_total{{instance="{RUN_ID}",result="committed"}}[10m]) > 0.5'
        seen = {series["metric"]["drill"] for series in prometheus.query_range(outcomes, 60.0, 1.0, ended)}
        assert seen == {"false", "true"}
        picture = charts.draw(charts.asked(prometheus, began, ended), began, ended)
        assert picture.count("<polyline") >= len(charts.PANELS)
