"""A page of the documentation as what can be tried of it: its blocks, its links, its sections.

A comment right above a block says what becomes of it:

    <!-- file: train.py -->       it is written to the page's folder under this name
    <!-- shared -->               it is what the page's other Python blocks begin with
    <!-- not run: reason -->      it is not run
    <!-- beside: COMMAND -->      COMMAND trains in the background, from here to the end of the page, or to a block that is `alone`
    <!-- alone -->                what trains in the background is ended before it
    <!-- meanwhile: COMMAND -->   COMMAND is typed in another terminal, when the block has said its first line

Any other `python` block is run by itself, and any other `console` block is typed in: lines that begin with "$ " are
commands, and the lines below each must be found in what it says, in this order. "…" stands for anything, and a
number for any number. What ends in "^C" is left running once it has said the lines above, and ended with the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(
    r"(?P<notes>(?:^ *<!-- [^\n]* -->\n+)*)^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_NOTE = re.compile(r"<!-- (not run|file|shared|beside|alone|meanwhile)(?:: (.*?))? -->")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, and what the page says about it."""

    page: str
    line: int
    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)

    def typed(self) -> Iterator[tuple[str, list[str]]]:
        """Of a console block: each command, and the lines that it must say."""
        command = ""
        said: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, said
                command, said = line[2:], []
            elif line.startswith("> ") and not said:
                command += "\n" + line[2:]
            elif line.strip():
                said.append(line)
        if command:
            yield command, said


def pages() -> list[Path]:
    """README and its siblings, and all of docs/."""
    return sorted([*ROOT.glob("*.md"), *ROOT.joinpath("docs").rglob("*.md")])


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(
            name,
            text.count("\n", 0, match.start("text")),
            match["language"],
            re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            {key: value or "" for key, value in _NOTE.findall(match["notes"])},
        )
        for match in _FENCE.finditer(text)
    ]


def links(page: Path) -> list[str]:
    """Where its links lead, those inside blocks left out."""
    return _LINK.findall(_FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """What a link may name behind "#", as GitHub makes it from a heading."""
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(page.read_text())]
    return {heading.strip().replace(" ", "-") for heading in plain}


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    marks = heading.partition(" ")[0]
    _, _, below = page.read_text().partition(f"\n{heading}\n")
    assert below, f"{page.name} has no section {heading!r}"
    return re.split(rf"^#{{1,{len(marks)}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def prose(page: Path) -> str:
    """Its text in one line, without the marks of code and tables: what is looked for in it may be broken anywhere."""
    return unmarked(page.read_text())


def unmarked(text: str) -> str:
    return " ".join(text.replace("`", "").replace("|", " ").split())
