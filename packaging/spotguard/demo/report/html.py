"""The files that the demo leaves: a page, a picture, and the same facts as JSON."""

from __future__ import annotations

import html
import json
import platform
from importlib import metadata
from pathlib import Path

from ..compare import Verdict
from ..scenario import DemoPlan, Scenario
from .picture import WIDTH, draw
from .summary import kept

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>spotguard demo</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: {width}px; margin: 2em auto; padding: 0 1em }}
svg {{ max-width: 100%; height: auto }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em 1.2em .2em 0; text-align: left }}
td:first-child {{ font-variant-numeric: tabular-nums }}
pre, code {{ font: 13px ui-monospace, monospace }} pre {{ overflow-x: auto }}
</style>
<h1>spotguard demo</h1>
<p>A small GPT learned to write like Python's own standard library. In the middle of its {steps:,} steps, the (simulated)
cloud, {cloud}, preempted its machine; another machine resumed from the store.{link}</p>
<p><strong>{kept}.</strong></p>
<p><strong>{verdict}.</strong></p>
{picture}
<h2>The way of the notice</h2>
<table><tr><th>after<th>what
{rows}
</table>
{line}
<h2>Do it yourself</h2>
<p>What the demo did, by hand, in two terminals. The second machine was given the second command again. The lines with
<code>guard</code> in them are all that the script needs.</p>
<pre>spotguard simulate {provider} --preempt-after 10 --window {window:g}
spotguard run --provider {provider}{options} --metadata-endpoint http://127.0.0.1:PORT --store file:///mnt/shared -- python train.py</pre>
<details><summary>train.py</summary>
<pre>{script}</pre></details>
<p><small>{machine}</small></p>
</html>
"""


def leave(plan: DemoPlan, story: Scenario, verdict: Verdict) -> Path:
    """Write all files, and return the page's path."""
    folder = plan.left
    picture = draw(plan, story, verdict)
    page = folder / "report.html"
    (folder / "demo.report.svg").write_text(picture)
    (folder / "demo.json").write_text(json.dumps(_facts(plan, story, verdict), indent=1) + "\n")
    page.write_text(_page(plan, story, verdict, picture))
    return page


def _page(plan: DemoPlan, story: Scenario, verdict: Verdict, picture: str) -> str:
    line = story.timeline
    left = [] if line.slack is None else [(line.slack, "were left")]
    return _PAGE.format(
        width=WIDTH,
        steps=plan.steps,
        cloud=plan.cloud.title,
        provider=plan.cloud.name,
        options="".join(f" {word}" for word in plan.cloud.options(plan.window)),
        link=f" The machines' link to it, {plan.link:g} Mbit/s, is simulated too." if plan.link else "",
        kept=html.escape(kept(plan, story)),
        verdict=html.escape(verdict.line()),
        picture=picture,
        rows="\n".join(
            f"<tr><td>{at:.3f} s<td>{html.escape(what)}"
            for at, what in [*((mark.at, mark.what) for mark in line.marks), *left]
        ),
        line=f"<p>In the agent's own words: <code>{html.escape(line.line)}</code></p>" if line.line else "",
        window=plan.window,
        script=html.escape(plan.script.read_text()),
        machine=html.escape(
            f"Python {platform.python_version()}, torch {metadata.version('torch')}, {platform.machine()}"
        ),
    )


def _facts(plan: DemoPlan, story: Scenario, verdict: Verdict) -> dict[str, object]:
    line = story.timeline
    return {
        "cloud": plan.cloud.name,
        "equal": verdict.equal,
        "saved": story.saved,
        "kept": kept(plan, story),
        "line": verdict.line(),
        "differences": verdict.differences,
        "tensors": verdict.tensors,
        "values": verdict.values,
        "steps": verdict.steps,
        "noticed_at": story.noticed_at,
        "resumed_at": story.resumed_at,
        "lost": story.lost,
        "window": line.window,
        "slack": line.slack,
        "link": plan.link,
        "bytes": story.nbytes,
        "timeline": [{"what": mark.what, "at": round(mark.at, 6)} for mark in line.marks],
        "outcome": line.line,
        "losses": story.reference.by_step,
    }
