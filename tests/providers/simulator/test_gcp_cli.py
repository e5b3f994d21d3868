"""`simulate gcp` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.providers.simulator import cli
from spotguard.providers.simulator.gcp import cli as gcp_cli
from spotguard.providers.simulator.scenario import parse_script
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateGcp


def test_flags_and_script_are_one_sequence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each thing at its time, up to the end that was asked for, and the line to copy first."""
    script = tmp_path / "script"
    script.write_text("0.02 no-upcoming as=bare\n0.06 stop max=5m\n")
    words = ["--preempt-after=0.04", "--window=0.01", "--notice=120", "--upcoming=7200", "--fault=held-503"]
    words += ["--maintenance-after=0.03", "--maintenance=migrate", f"--script={script}"]
    assert cli.main(["gcp", "--for=0.5", *words]) == 0
    first, second, *lines = capsys.readouterr().out.splitlines()
    endpoint = first.removeprefix("endpoint: ")
    assert second == (
        f"try it:   spotguard run --provider gcp --metadata-endpoint {endpoint} --window 120 -- python train.py"
    )
    whole = " / ".join(line.partition(" s  ")[2] for line in lines)
    order = [
        "fault: held-503",
        "upcoming maintenance in 7200 s, as snake",
        "no upcoming maintenance, as bare",
        "maintenance-event: MIGRATE_ON_HOST_MAINTENANCE",
        "notice: preempted, power button in 120 s, gone in 0.01 s",
        "stop-state: PENDING_STOP, for 300 s at most",
        "ended; 0 requests",
    ]
    positions = [whole.index(words) for words in order]
    assert positions == sorted(positions)
    assert "the deadline: a real instance is gone now" in whole


def test_each_verb_does_what_it_says(simulate_gcp: SimulateGcp, clock: ManualClock) -> None:
    told: list[str] = []
    vm = simulate_gcp(clock, tell=told.append)
    script = """
        0 maintenance terminate
        0 upcoming in=2h as=old status=ONGOING
        0 fault etag count=2 path=preempted
        0 preempt notice=120 window=2m
        0 stop
        0 clear
        """
    for step in parse_script(script, "script", gcp_cli.VERBS):
        step.do(vm)
    assert told == [
        "maintenance-event: TERMINATE_ON_HOST_MAINTENANCE",
        "upcoming maintenance in 7200 s, as old",
        "fault: etag at preempted",
        "notice: preempted, power button in 120 s, gone in 120 s",
        "stop-state: PENDING_STOP, for 600 s at most",
        "all clear",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--maintenance", "reboot"], "argument --maintenance: invalid choice: 'reboot'"),
        (["--notice", "soon"], "argument --notice: 'soon' is not a time: expected seconds"),
        (["--pid", "4194305"], "pid 4194305: cannot be signalled: No such process"),
        (["--fault", "hop-limit"], "argument --fault: invalid choice: 'hop-limit'"),
    ],
)
def test_a_usage_error_is_refused_before_anything_listens(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    try:
        code = cli.main(["gcp", *words])
    except SystemExit as error:  # argparse's own way
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
