"""The picture of a demo: two loss curves laid over each other, and the notice's timeline."""

from __future__ import annotations

from spotguard.report.svg import Drawing

from ..compare import Verdict
from ..scenario import DemoPlan, Scenario
from .chart import Series, frame, means, steps
from .clockwork import height, way_of_the_notice

WIDTH = 880
#: The top of the notice's timeline in pixels, below the curves.
_WAY = 352
#: The number of steps on either side of the hand-over that are shown one by one.
_CLOSE = 12

# The picture has its own background, so that it looks right on any page, and follows the reader's colour scheme.
_STYLE = """
.demo { --page: #ffffff; --edge: #d1d9e0; --ink: #1f2328; --faint: #59636e; --grid: #eaeef2;
  --reference: #c3cad2; --first: #0969da; --second: #bc4c00; --alarm: #cf222e; --good: #1a7f37; --calm: #dafbe1 }
@media (prefers-color-scheme: dark) { .demo { --page: #0d1117; --edge: #3d444d; --ink: #f0f6fc; --faint: #9198a1;
  --grid: #21262d; --reference: #4f5863; --first: #4493f8; --second: #f0883e; --alarm: #f85149; --good: #3fb950;
  --calm: #12261e } }
.demo text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink) }
.demo .title { font-size: 17px; font-weight: 600 }
.demo .head { font-weight: 600; font-size: 13px }
.demo .faint { fill: var(--faint) } .demo .tick { fill: var(--faint); font-size: 11px }
.demo .good { fill: var(--good); font-weight: 600 } .demo .bad { fill: var(--alarm); font-weight: 600 }
.demo .alarm { fill: var(--alarm) }
.demo .card { fill: var(--page); stroke: var(--edge) }
.demo .grid { stroke: var(--grid) } .demo .axis { stroke: var(--edge) }
.demo .handover { stroke: var(--alarm); stroke-dasharray: 4 3 }
.demo polyline { fill: none; stroke-linejoin: round; stroke-linecap: round }
.demo .reference-line { stroke: var(--reference); stroke-width: 5 }
.demo .raw-line { stroke: var(--grid); stroke-width: 1 }
.demo .first-line { stroke: var(--first); stroke-width: 1.6 } .demo .second-line { stroke: var(--second); stroke-width: 1.6 }
.demo .reference-dot { fill: var(--reference) }
.demo .first-dot { fill: var(--first) } .demo .second-dot { fill: var(--second) }
.demo .first-bar { fill: var(--first) } .demo .reference-bar { fill: var(--reference) } .demo .calm { fill: var(--calm); stroke: var(--good); stroke-opacity: .4 }
"""


def draw(plan: DemoPlan, story: Scenario, verdict: Verdict) -> str:
    """Return the picture as the text of an SVG file."""
    title = f"Preempted by {plan.cloud.title} at step {story.parts[0].step:,}, resumed on the next machine"
    drawing = Drawing(WIDTH, _WAY + round(height(story.timeline)))
    drawing.rect(0.5, 0.5, WIDTH - 1, drawing.height - 1, "card", round=10)
    drawing.text(28, 38, title + (": the same run, bit for bit" if verdict.equal else ""), "title")
    drawing.text(28, 60, verdict.short[:120], "good" if verdict.equal else "bad")
    _legend(drawing, 28, 88)
    _whole_run(drawing, story)
    _hand_over(drawing, story)
    way_of_the_notice(drawing, plan.cloud, story.timeline, top=_WAY)
    return drawing.render(_STYLE, f"{title}. {verdict.line()}")


def _legend(drawing: Drawing, x: float, y: float) -> None:
    for name, words, width in (
        ("reference", "never interrupted, without spotguard", 290),
        ("first", "machine 1, preempted", 190),
        ("second", "machine 2, resumed", 0),
    ):
        drawing.path([(x, y - 4), (x + 22, y - 4)], f"{name}-line")
        drawing.text(x + 30, y, words, "faint")
        x += width


def _series(story: Scenario) -> tuple[Series, Series, Series]:
    first, second = story.parts
    return (
        Series("reference", story.reference.by_step),
        # Machine 2 repeats the steps that machine 1 did after its last commit: they are shown once.
        Series("first", {step: loss for step, loss in first.by_step.items() if step <= story.resumed_at}),
        Series("second", second.by_step),
    )


def _whole_run(drawing: Drawing, story: Scenario) -> None:
    every = _series(story)
    reference, first, second = every
    done, width = story.resumed_at, max(1, len(reference.by_step) // 45)
    x, y = frame(drawing, every, left=64, right=556, top=124, bottom=308)
    drawing.text(64, 116, f"loss, mean of {width} steps" if width > 1 else "loss", "head")
    drawing.path([(x(step), y(loss)) for step, loss in reference.points], "raw-line")
    drawing.line(x(done), 124, x(done), 308, "handover")
    drawing.text(x(done) + 6, 136, f"machine 2 resumes after step {done:,}", "alarm")
    resumed = {**first.by_step, **second.by_step}
    for one, over in ((reference, reference.by_step), (first, resumed), (second, resumed)):
        drawing.path(
            [(x(step), y(loss)) for step, loss in means(one, over, width).points], f"{one.name}-line"
        )


def _hand_over(drawing: Drawing, story: Scenario) -> None:
    done = story.resumed_at
    series = tuple(steps(one, done - _CLOSE + 1, done + _CLOSE) for one in _series(story))
    x, y = frame(drawing, series, left=622, right=852, top=124, bottom=308)
    drawing.text(622, 116, "the hand-over, step by step", "head")
    drawing.line(x(done + 0.5), 124, x(done + 0.5), 308, "handover")
    for one in series:
        points = [(x(step), y(loss)) for step, loss in one.points]
        drawing.path(points, f"{one.name}-line")
        for at in points:
            drawing.dot(*at, 4.5 if one.name == "reference" else 2.2, f"{one.name}-dot")
