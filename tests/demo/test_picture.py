"""The picture is well-formed whatever happened, and draws nothing that did not."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from spotguard.demo.compare import Verdict
from spotguard.demo.losses import Losses
from spotguard.demo.picture import draw
from spotguard.demo.story import Story
from spotguard.demo.svg import Scale
from spotguard.demo.timeline import COMMITTED, Mark, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def part(first: int, last: int) -> Losses:
    by_step = {step: 4 / step for step in range(first, last + 1)}
    return Losses(Path("unread"), started=first - 1, by_step=by_step)


def story(first: Losses, second: Losses, *marks: Mark) -> Story:
    line = Timeline(20.0, (Mark("the notice", 0.0), *marks), 18.5)
    return Story(part(1, 100), (first, second), Path("a"), Path("b"), line, 40)


def classes(picture: str) -> list[str]:
    return [shape.get("class", "") for shape in ElementTree.fromstring(picture).iter()]


def test_all_three_curves_are_drawn() -> None:
    """The reference, and what each machine did of it."""
    told = story(part(1, 50), part(51, 100), Mark(COMMITTED, 0.2), Mark("exited <&>", 1.5))
    drawn = classes(draw(told, Verdict(3, 10, 100, ())))
    assert {"reference-line", "first-line", "second-line", "first-dot", "second-dot"} <= set(drawn)
    assert drawn.count("reference-bar") == 1, "what comes after the commit is drawn in another colour"


@pytest.mark.parametrize("began", [1, 100])
def test_a_machine_that_began_again_is_drawn_too(began: int) -> None:
    """Nothing saved: the second curve is the whole run, and the first is empty. Or the other way round."""
    told = story(part(1, 50 if began == 1 else 99), part(began, 100), Mark("killed", 20.0))
    verdict = Verdict(3, 10, 100, ("model.w: 1 of 8 bytes differ",))
    picture = draw(told, verdict)
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


def test_what_was_saved_is_asked_of_the_store() -> None:
    """Whoever goes on before the notice came has lost something, whatever the agent's record says."""
    assert story(part(1, 50), part(41, 100), Mark("killed", 20.0)).saved
    assert not story(part(1, 50), part(40, 100), Mark("killed", 20.0)).saved
