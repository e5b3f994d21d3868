"""The parts of the reference pages that come from the code, and Grafana's alerts. `python -m tests.docs.generated` writes them again.

A part stands between `<!-- generated: KIND [NAME] -->` and `<!-- end -->`. The text around it is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from spotguard.agent import outcome
from spotguard.agent.config.settings import SETTINGS
from spotguard.agent.telemetry.metrics.definitions import METRICS
from spotguard.cli import main
from spotguard.cli.parser import Parser
from spotguard.hooks.ipc.failure_classes import CLASSES, DEATHS
from tests.docs.messages import messages
from tests.docs.pages import ROOT

MESSAGES = ROOT / "tests" / "golden" / "messages.txt"
REPORTS = ROOT / "tests" / "hooks" / "state" / "reports"

_PART = re.compile(r"(<!-- generated: (\w+) ?([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def parts(text: str) -> list[tuple[str, str]]:
    """Return the kind and the name of each generated part of a page."""
    return [(kind, name) for _, kind, name, _ in _PART.findall(text)]


def renewed(text: str) -> str:
    """Return the text of a page with each generated part as the code has it now."""
    return _PART.sub(lambda found: f"{found[1]}{_KINDS[found[2]](found[3])}{found[4]}", text)


def message_list() -> str:
    """Return every message of the code, in the order of files and lines: `tests/golden/messages.txt`."""
    lines: list[str] = []
    file = ""
    for message in messages():
        name, _, _ = message.place.rpartition(":")
        if name != file:
            lines += ["", name] if lines else [name]
            file = name
        words = re.sub("…+", "…", "…".join(piece.replace("\n", " ") for piece in message.pieces))
        if words.strip(" …") and (line := f"  {words}") not in lines[lines.index(name) :]:
            lines.append(line)
    return "\n".join(lines) + "\n"


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command's parser, and each subcommand's, by name."""
    for name in main.COMMANDS:
        parser = Parser(prog=f"spotguard {name}")
        main._module(name).add_arguments(parser)
        yield name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((f"{name} {word}", one) for word, one in action.choices.items())


def _command(name: str) -> str:
    """The description of a command, and a table for each group of its options."""
    parser = dict(parsers())[name]
    about = "" if " " in name else " ".join(main._module(name).DESCRIPTION.split())
    tables = [
        (group.title or "", rows)
        for group in parser._action_groups
        if (rows := [row for action in group._group_actions for row in _argument(action)])
    ]
    text = "\n".join(_sentences(about)) + "\n\n" if about else ""
    for title, rows in tables:
        head = f"**{title.capitalize()}**\n\n" if len(tables) > 1 else ""
        text += f"{head}| argument | meaning |\n|---|---|\n" + "\n".join(rows) + "\n\n"
    return "\n" + text


def _argument(action: argparse.Action) -> Iterator[str]:
    if action.help == argparse.SUPPRESS or action.dest == "help":
        return
    if isinstance(action, argparse._SubParsersAction):
        return
    name = action.option_strings[0] if action.option_strings else ""
    metavar = action.metavar or action.dest.upper()
    takes = "" if action.nargs == 0 else metavar if isinstance(metavar, str) else " ".join(metavar)
    if action.choices and action.metavar is None:
        takes = "{" + ",".join(map(str, action.choices)) + "}"
    words = (action.help or "").replace("%%", "%").replace("|", "\\|")
    yield f"| `{f'{name} {takes}'.strip()}` | {words} |"


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.:]) (?=[A-Z])", text)


def _settings(_: str) -> str:
    """The options of `run` and `agent`."""
    rows = [
        f"| `{each.flag}{' ' + each.metavar if each.metavar else ''}` | `{each.variable}` | {', '.join(each.commands)} "
        f"| {each.help.replace('|', chr(92) + '|')} |"
        for each in SETTINGS
    ]
    head = ["| flag | environment variable | commands | meaning |", "|---|---|---|---|"]
    return "\n" + "\n".join([*head, *rows]) + "\n\n"


def _metrics(_: str) -> str:
    rows = [
        f"| `{each.name}` | {each.type} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in METRICS
    ]
    return "\n" + "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]) + "\n\n"


def _fields(name: str) -> str:
    """The fields of a dataclass of `agent/outcome.py`, with the comments above them."""
    path = Path(outcome.__file__)
    lines = path.read_text().splitlines()
    body = next(
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ).body
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation).replace(" | None", " or `null`").replace("|", "\\|")
            rows.append(f"| `{node.target.id}` | {kind} | {_comment_above(lines, node.lineno)} |")
    return "\n" + "\n".join(rows) + "\n\n"


def _comment_above(lines: list[str], number: int) -> str:
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#:"):
            break
        found.append(line.strip().removeprefix("#:").strip())
    return " ".join(reversed(found)).replace("|", "\\|")


def _failures(_: str) -> str:
    """Return the classes of errors as a table."""
    rows = [
        "| class | meaning | evidence | confidence | scope | saved | what to do |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in (*CLASSES.values(), *DEATHS.values()):
        what = each.advice.replace("|", "\\|")
        evidence = ", ".join(each.evidence) or "no other class fits"
        saved = "yes" if each.commits else "no"
        cells = (f"`{each.name}`", each.says, evidence, each.confidence, each.scope, saved, what)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _reports(_: str) -> str:
    """Return the public reports that the tests have, with their verdicts; it imports no torch."""
    found: dict[str, tuple[str, str]] = dict(_reports_elsewhere())
    for path in sorted(REPORTS.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "report":
                    where, says = [*map(ast.literal_eval, call.args), ""][:2]
                    silent = any(each.arg == "silent" for each in call.keywords)
                    found[where] = (ast.get_docstring(node) or "", "-" if silent else says)  # type: ignore[arg-type]
    rows = [
        f"| {where} | {what} | {'another run' if says == '-' else f'`{says}`' if says else 'exact'} |"
        for where, (what, says) in sorted(found.items(), key=lambda each: each[0].lower())
    ]
    return "\n".join(["", "| report | what happens there | here |", "|---|---|---|", *rows]) + "\n\n"


def _reports_elsewhere() -> Iterator[tuple[str, tuple[str, str]]]:
    from tests.hooks.state.reports.test_elsewhere import ELSEWHERE

    for where, (what, says, _test) in ELSEWHERE.items():
        yield where, (what, says)


_KINDS: dict[str, Callable[[str], str]] = {
    "command": _command,
    "settings": _settings,
    "metrics": _metrics,
    "fields": _fields,
    "failures": _failures,
    "reports": _reports,
}


def pages() -> list[Path]:
    """Return the pages with generated parts."""
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if parts(page.read_text())]


if __name__ == "__main__":
    from tests.deploy.grafana import NAME, grafana_alerts  # it needs YAML, which the pages do not

    for page in pages():
        page.write_text(renewed(page.read_text()))
        print(page.relative_to(ROOT), file=sys.stderr)
    MESSAGES.write_text(message_list())
    grafana = ROOT / "packaging" / "spotguard" / "deploy" / "template-files" / NAME
    grafana.write_text(grafana_alerts())
