"""The report as one HTML page. It loads nothing, runs no script, and follows the reader's colour scheme.

Names of runs and machines, and the messages of errors, come from others: each is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from datetime import UTC, datetime

from spotguard.providers.text import span

from .attempts import AttemptLine
from .facts import RunFacts, StackGroup
from .picture import draw, duration, legend
from .reckoning import AlarmLine, RunReport
from .summary import (
    STATES,
    alarm_of,
    cause_of,
    facts_of,
    failure_of,
    group_of,
    lost_steps,
    machines_of,
    percent,
    short_seconds,
    shown_shares,
    stall_of,
    steps,
)

_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f6f8fa; --ink: #1f2328; --faint: #59636e; --edge: #d1d9e0;
  --grid: #e4e8ec; --line: #0969da; --useful: #2da44e; --again: #cf222e; --checkpoints: #0969da; --saving: #8250df;
  --starting: #1b7c83; --waiting: #bf8700; --down: #8c959f; --unseen: #57606a; --rest: #d0d7de; --shade: #eaeef2; --alarm: #bc4c00 }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --card: #151b23; --ink: #f0f6fc; --faint: #9198a1; --edge: #3d444d;
  --grid: #242b33; --line: #4493f8; --useful: #3fb950; --again: #f85149; --checkpoints: #4493f8; --saving: #ab7df8;
  --starting: #39c5cf; --waiting: #d29922; --down: #6e7681; --unseen: #8b949e; --rest: #30363d; --shade: #1c232c; --alarm: #f0883e } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1080px; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem }
p { margin: .4rem 0; max-width: 70ch } .faint, small { color: var(--faint) }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .7rem; margin: 1.2rem 0 0; padding: 0 }
.figures div { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: .7rem .9rem }
.figures dt { color: var(--faint); font-size: .85rem } .figures dd { margin: 0; font-size: .85rem; color: var(--faint) }
.figures dd strong { display: block; font-size: 1.6rem; line-height: 1.3; color: var(--ink); font-variant-numeric: tabular-nums }
.bar { display: flex; height: 1.6rem; border-radius: 6px; overflow: hidden; border: 1px solid var(--edge); margin-bottom: .8rem }
.bar span { min-width: 2px } .swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .5rem }
table { border-collapse: collapse; width: 100%; font-size: .92rem }
th { text-align: left; color: var(--faint); font-weight: 600; white-space: nowrap } th, td { padding: .4rem .8rem .4rem 0; vertical-align: top }
.shares tr, .attempts tbody { border-top: 1px solid var(--edge) }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.shares { max-width: 40rem } .end, h1, .faint { overflow-wrap: anywhere } .faint { max-width: none }
.attempts td { white-space: nowrap } .attempts .end { white-space: normal; padding-top: 0 } time { white-space: nowrap }
.end-error { color: var(--again) } .end-notice { color: var(--alarm) }
ul.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; margin: .4rem 0; list-style: none; font-size: .85rem; color: var(--faint) }
ul.legend svg { vertical-align: -3px; margin-right: .3rem }
svg.timeline { display: block; width: 100%; height: auto } svg.small { display: none }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--faint) }
svg .grid { stroke: var(--grid) } svg .axis { stroke: var(--edge) }
svg .attempt { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
svg .checkpoint { fill: var(--line) } svg .saved { fill: var(--page); stroke: var(--saving); stroke-width: 2.5 }
svg .notice { fill: var(--alarm) } svg .error { stroke: var(--again); stroke-width: 3; stroke-linecap: round }
svg .bare { fill: var(--page); stroke: var(--unseen); stroke-width: 2 }
svg .ended { fill: var(--useful); stroke: var(--page); stroke-width: 1.5 }
svg .down { fill: var(--shade) } svg .unseen { fill: none; stroke: var(--unseen); stroke-dasharray: 3 3 }
.failure { margin-top: .7rem } .failure pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); padding: .7rem }
.failure th { width: 7rem } .stacks { margin: .4rem 0 0 1rem } .stacks summary { font-weight: 400 } main > details { margin-top: 2rem } summary { cursor: pointer; font-weight: 600 }
@media (max-width: 640px) {
  svg.wide { display: none } svg.small { display: block }
  .figures { grid-template-columns: repeat(2, 1fr) } .figures div { padding: .6rem .7rem } .figures dd strong { font-size: 1.3rem }
  .attempts thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
  .attempts, .attempts tbody, .attempts tr, .attempts td { display: block }
  .attempts tbody { border: 1px solid var(--edge); border-radius: 8px; margin-bottom: .7rem; padding: .4rem .8rem; background: var(--card) }
  .attempts td { display: flex; justify-content: space-between; gap: 1rem; padding: .15rem 0 }
  .attempts td::before { content: attr(data-name); color: var(--faint) } .attempts .end { display: block; padding-top: .3rem }
}
@media print { body { max-width: none } details { display: block } }
"""

#: Names of figures that a page has room for.
_TILES = {"ETTR": "goodput (ETTR)"}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{run} – spotguard report</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{run}: {state}</h1>
<p class="faint">{store}<br>{when}</p>
<dl class="figures">
{figures}</dl>
{notes}<section aria-labelledby="timeline">
<h2 id="timeline">Timeline</h2>
{picture}</section>
<section aria-labelledby="time">
<h2 id="time">Where the time went</h2>
{shares}</section>
<section aria-labelledby="attempts">
<h2 id="attempts">Attempts</h2>
{attempts}</section>
{alarms}<details>
<summary>How the figures are reckoned</summary>
{explained}</details>
</main>
</body>
</html>
"""

_EXPLAINED = (
    "ETTR, the effective training time ratio, is the steps that count in the end, times the median seconds of an undisturbed "
    "step, over the wall time from the first start to the last sign of the run. Each attempt's steps are counted with its own "
    "median. The time for which the run has been down since then is a figure of its own.",
    "The ETTR without queueing is over the wall time less the time spent waiting for machines, as far as that is known.",
    "Steps are lost if they were trained and the next start does not have them. If the end of an attempt has no record, they "
    'are not known, and not in the sum. If a process was killed, they count up to where its agent last saw it: "≥" is before them.',
    "Steps are kept if they count thanks to a save at a notice or an error: they come after the last checkpoint that training "
    "made by itself, or after the attempt's first step.",
    "The cost of a checkpoint is the time for which training stood still for it, and the slower steps beside its upload.",
    "Waiting for a machine is known where Slurm states the start of its job, or where the machine was booted after the "
    "attempt before it had ended. It is in the wall time, too.",
)


def page(report: RunReport, facts: RunFacts) -> str:
    """Return the HTML page."""
    ended = f", last sign {_moment(report.ended)}" if report.ended is not None else ""
    began = f"First start {_moment(report.started)}{ended}. " if report.started is not None else ""
    notes = "".join(f"<p><small>{html.escape(each)}</small></p>\n" for each in report.notes)
    return _PAGE.format(
        run=html.escape(report.run_id),
        state=html.escape(STATES[report.state]),
        store=html.escape(report.store),
        when=f"{began}Report of {_moment(report.now)}.",
        style=_STYLE,
        figures="".join(
            f"<div><dt>{html.escape(_TILES.get(name, name))}</dt><dd><strong>{html.escape(figure)}</strong>{html.escape(words)}</dd></div>\n"
            for name, figure, words in facts_of(report)
        ),
        notes=notes,
        picture=_picture(report, facts),
        shares=_shares(report),
        attempts=_attempts(report),
        alarms=_alarms(report),
        explained="".join(f"<p>{each}</p>\n" for each in _EXPLAINED),
    )


def _alarm(alarm: AlarmLine, report: RunReport) -> str:
    """Return one failure with all that its record has, or one stall with the stacks of its ranks."""
    line = f"{html.escape(alarm.id)}: {_moment(alarm.at)} {html.escape(alarm_of(alarm))}"
    if alarm.failure is None and alarm.stall is None:
        return f"<p>{line}</p>\n"
    facts = [*failure_of(alarm, report), *(stall_of(alarm.stall) if alarm.stall is not None else ())]
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td>{html.escape(text)}</td></tr>\n' for name, text in facts
    )
    failure = alarm.failure
    texts = (failure.message, "\n".join(failure.stack)) if failure is not None else ()
    shown = "".join(f"<pre>{html.escape(text)}</pre>\n" for text in texts if text)
    groups = "".join(map(_stacks, alarm.stall.groups)) if alarm.stall is not None else ""
    return f'<details class="failure">\n<summary>{line}</summary>\n<table>\n{rows}</table>\n{shown}{groups}</details>\n'


def _stacks(group: StackGroup) -> str:
    """Return the stacks of some ranks that stand at one place, folded."""
    text = "\n\n".join(group.stacks) or "no stack is known"
    return (
        f'<details class="stacks">\n<summary>{html.escape(group_of(group))}</summary>\n<pre>{html.escape(text)}</pre>\n'
        "</details>\n"
    )


def _moment(wall: float) -> str:
    at = datetime.fromtimestamp(wall, UTC).astimezone()
    return f'<time datetime="{at.isoformat(timespec="seconds")}">{at.strftime("%Y-%m-%d %H:%M:%S %Z")}</time>'


def _picture(report: RunReport, facts: RunFacts) -> str:
    wide = draw(report, facts, width=1040, height=360, name="wide")
    if not wide:
        return "<p>The store has too little of this run for a timeline.</p>\n"
    signs = "".join(f"<li>{sign}{html.escape(meaning)}</li>\n" for sign, meaning in legend())
    small = draw(report, facts, width=368, height=300, name="small")
    return f'{wide}{small}<ul class="legend">\n{signs}</ul>\n<p class="faint">Completed steps over the time since the first start. Checkpoints that were deleted since are not marked.</p>\n'


def _shares(report: RunReport) -> str:
    shown = shown_shares(report)
    if not shown:
        return "<p>Not known.</p>\n"
    bar = "".join(
        f'<span style="flex: {each.seconds:.3f} 0 0; background: var(--{each.key})"></span>' for each in shown
    )
    rows = "".join(
        f'<tr><td><span class="swatch" style="background: var(--{each.key})"></span>{html.escape(each.name)}</td>'
        f'<td class="number">{span(each.seconds)}</td><td class="number">{percent(each.seconds, report.wall)}</td></tr>\n'
        for each in shown
    )
    return (
        f'<div class="bar" aria-hidden="true">{bar}</div>\n<table class="shares">\n<thead><tr><th scope="col">part</th>'
        f'<th scope="col" class="number">time</th><th scope="col" class="number">share</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n'
    )


def _alarms(report: RunReport) -> str:
    if not report.alarms:
        return ""
    shown = "".join(_alarm(each, report) for each in report.alarms)
    return (
        f'<section aria-labelledby="alarms">\n<h2 id="alarms">Failures and stalls</h2>\n{shown}'
        '<p class="faint">One of them was a false alarm? <code>spotguard report --dismiss ID</code> stops counting it.</p>\n'
        "</section>\n"
    )


def _attempts(report: RunReport) -> str:
    if not report.attempts:
        return "<p>There is none yet.</p>\n"
    heads = [name for name, _ in _cells(report.attempts[0])]
    head = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in heads)
    rows = "".join(map(_attempt, report.attempts))
    # Roles by hand: where a narrow screen shows attempts as cards, a browser would forget that they are a table.
    return (
        f'<table class="attempts" role="table" aria-labelledby="attempts">\n<thead role="rowgroup"><tr role="row">{head}'
        f"</tr></thead>\n{rows}</table>\n"
    )


def _attempt(line: AttemptLine) -> str:
    """Return the rows of one attempt: its figures, then its end and its machines as a sentence."""
    cells = [*_cells(line)]
    row = "".join(f'<td role="cell" data-name="{name}">{text}</td>' for name, text in cells)
    stalls = f"; it stood still {line.stalls} time{'s' * (line.stalls != 1)}" if line.stalls else ""
    ranks = "" if line.world is None else f", {line.world} rank{'s' * (line.world != 1)}"
    return (
        f'<tbody role="rowgroup">\n<tr role="row">{row}</tr>\n<tr role="row"><td role="cell" class="end" colspan="{len(cells)}">'
        f'<span class="end-{line.end or "unknown"}">{html.escape(cause_of(line) + stalls)}</span> '
        f"<small>({html.escape(machines_of(line) + ranks)})</small></td></tr>\n</tbody>\n"
    )


def _cells(line: AttemptLine) -> Iterator[tuple[str, str]]:
    """Yield the figures of an attempt: the column, and the HTML of the cell."""
    yield "attempt", str(line.number)
    yield "started", "-" if line.started is None else _moment(line.started)
    lasted = None if line.started is None or line.ended is None else max(0.0, line.ended - line.started)
    yield "lasted", duration(lasted)
    yield "steps", f"{steps(line.first)} to {steps(line.last if line.last is not None else line.committed)}"
    yield "lost", lost_steps(line)
    yield "kept", steps(line.kept)
    yield "step time", short_seconds(line.step_seconds)
    yield "checkpoints", steps(line.saves)
