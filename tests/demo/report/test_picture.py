"""The picture is well-formed whatever happened, and draws nothing that did not."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from spotguard.demo.clouds import CLOUDS
from spotguard.demo.compare import Losses, Verdict
from spotguard.demo.report.picture import draw
from spotguard.demo.report.summary import kept
from spotguard.demo.scenario import DemoPlan, Scenario
from spotguard.demo.timeline import COMMITTED, Mark, Timeline
from spotguard.report.svg import Scale, without_variables
from tests.docs.pages import ROOT

NOWHERE = Path("unread")


def plan(cloud: str = "aws", window: float = 120.0, link: float = 4.0) -> DemoPlan:
    return DemoPlan(CLOUDS[cloud], NOWHERE, 100, window, link, NOWHERE, NOWHERE, "file:///nowhere", "demo")


def part(first: int, last: int) -> Losses:
    by_step = {step: 4 / step for step in range(first, last + 1)}
    return Losses(Path("unread"), started=first - 1, by_step=by_step)


def story(first: Losses, second: Losses, *marks: Mark) -> Scenario:
    line = Timeline(20.0, (Mark("the notice", 0.0), *marks), 18.5)
    return Scenario(part(1, 100), (first, second), Path("a"), Path("b"), line, 40, 5 * 2**20)


def classes(picture: str) -> list[str]:
    return [shape.get("class", "") for shape in ElementTree.fromstring(picture).iter()]


def test_all_three_curves_are_drawn() -> None:
    """The reference, and what each machine did of it."""
    told = story(part(1, 50), part(51, 100), Mark(COMMITTED, 0.2), Mark("exited <&>", 1.5))
    drawn = classes(draw(plan(), told, Verdict(3, 10, 100, ())))
    assert {"reference-line", "first-line", "second-line", "first-dot", "second-dot"} <= set(drawn)
    assert drawn.count("reference-bar") == 1, "what comes after the commit is drawn in another colour"


@pytest.mark.parametrize("began", [1, 100])
def test_a_machine_that_began_again_is_drawn_too(began: int) -> None:
    """Nothing saved: the second curve is the whole run, and the first is empty. Or the other way round."""
    told = story(part(1, 50 if began == 1 else 99), part(began, 100), Mark("killed", 20.0))
    verdict = Verdict(3, 10, 100, ("model.w: 1 of 8 bytes differ",))
    picture = draw(plan(), told, verdict)
    assert "bit for bit" not in picture
    assert "model.w: 1 of 8 bytes differ" in picture
    assert "reference-bar" not in classes(picture)


@pytest.mark.parametrize(
    ("low", "high", "about", "ticks"),
    [
        (0, 20, 8, [0, 5, 10, 15, 20]),
        (0, 0.9, 5, [0, 0.2, 0.4, 0.6, 0.8]),
        (1.7, 4.6, 4, [2, 3, 4]),
        (7, 7, 4, [7]),
    ],
)
def test_ticks_are_round(low: float, high: float, about: int, ticks: list[float]) -> None:
    """Steps of 1, 2 or 5 times a power of ten, inside the scale."""
    assert Scale(low, high, 0, 100).ticks(about) == ticks


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_picture_says_whose_notice_it_was(cloud: str) -> None:
    """And how much that cloud gives, whatever was given here."""
    told = story(part(1, 50), part(51, 100), Mark(COMMITTED, 0.2))
    picture = draw(plan(cloud, 20.0), told, Verdict(3, 10, 100, ()))
    own = CLOUDS[cloud]
    assert f"Preempted by {own.title} at step 50" in picture
    assert f"20 s after the notice ({own.title} gives {own.window:g} s)" in picture


def test_the_kept_steps_are_told_plainly() -> None:
    """Everything; or what remained and what was lost; or nothing at all."""
    killed = Mark("killed", 20.0)
    everything = kept(plan(), story(part(1, 50), part(51, 100), killed))
    assert everything.startswith("KEPT: everything. Machine 1 saved step 50 after its notice")
    assert everything.endswith("resumed from there")
    some = kept(plan(window=10.0), story(part(1, 50), part(31, 100), killed))
    assert some.startswith(
        "DID NOT FIT: machine 1 had 10 s after its notice, and committed nothing in them: "
    )
    assert "5.0 MiB take 10.5 s at 4 Mbit/s" in some
    assert "the background checkpoint of step 30, 60% of the work of machine 1; 20 steps were lost" in some
    none = kept(plan(window=10.0), story(part(1, 50), part(1, 100), killed))
    assert none.endswith("all 50 steps were lost, and trained again by machine 2")
    failed = kept(plan(), story(part(1, 50), part(31, 100), killed))
    assert failed.startswith("NOT SAVED: machine 1 had 120 s")
    assert "all the time that AWS gives" in failed


def test_the_store_decides_whether_a_step_was_saved() -> None:
    """Whoever goes on before the notice came has lost something, whatever the agent's record says."""
    assert story(part(1, 50), part(41, 100), Mark("killed", 20.0)).saved
    assert not story(part(1, 50), part(40, 100), Mark("killed", 20.0)).saved


def test_pictures_need_no_variables_of_css() -> None:
    """Renderers other than browsers paint a shape black where its colour is a variable."""
    pictures = sorted(ROOT.joinpath("docs/images").glob("*.svg"))
    assert [path.name for path in pictures if "var(" in path.read_text()] == []
    style = ".demo { --ink: #111; --page: #fff }\n@media (prefers-color-scheme: dark) { .demo { --ink: #eee; --page: #000 } }\n"
    rules = ".demo .a { fill: var(--ink); stroke-width: 2 } .demo .b { font-weight: 600 }\n"
    day, _, night = without_variables(style + rules).partition("@media")
    assert ".demo .a { fill: #111; stroke-width: 2 } .demo .b { font-weight: 600 }" in day
    assert ".demo .a { fill: #eee }" in night
    assert ".b" not in night
