"""The hook of the docs site: what a copy button copies, and whether a built page has the lists and the code of its source.

Markdown ends a numbered list at a block that is not indented: the next item begins another list, with 1 again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

_FENCE = re.compile(r"^(?P<indent> *)```\w*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(
    r'<div class="(?:language-(?P<language>\w+) )?highlight">(?P<code>.*?</code></pre>)', re.DOTALL
)
_TAG = re.compile(r"<[^>]*>")


class BrokenPageError(Exception):
    """Error for a built page that differs from its source."""


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Return the page, checked, with what each of its copy buttons copies. mkdocs calls this."""
    if "--8<--" not in page.markdown and "\n::: " not in page.markdown:
        check(page.markdown, content)
    return _BLOCK.sub(_copied, content)


def check(source: str, content: str) -> None:
    """Compare the lists and the code of a page.

    Raises:
        BrokenPageError: the built page has others than the source.
    """
    blocks = [re.sub(rf"^{each['indent']}", "", each["text"], flags=re.M) for each in _FENCE.finditer(source)]
    built = [_text(each["code"]) for each in _BLOCK.finditer(content)]
    for block, shown in zip([*blocks, ""], [*built, ""], strict=False):
        if block.strip("\n") != shown.strip("\n"):
            raise BrokenPageError(f"the built page has another block of code than {(block or shown)[:60]!r}")
    begun = len(re.findall(r"^ *1\. ", _FENCE.sub("", source), re.MULTILINE))
    if (lists := content.count("<ol")) != begun:
        raise BrokenPageError(
            f"{begun} numbered lists are {lists} on the built page: indent what is in them by four spaces"
        )


def _text(code: str) -> str:
    return html.unescape(_TAG.sub("", code))


def _commands(lines: list[str]) -> Iterator[str]:
    """Yield the lines of commands without their prompts; behind a backslash a line has none."""
    more = False
    for line in lines:
        prompted = line.startswith(("$ ", "> "))
        if prompted or more:
            yield line[2:] if prompted else line
            more = line.endswith("\\")


def _copied(block: re.Match[str]) -> str:
    """Return a block whose button copies the commands of a console, and the new lines of a diff."""
    lines = _text(block["code"]).splitlines()
    if block["language"] == "console":
        lines = [*_commands(lines)]
    elif block["language"] == "diff":
        lines = [line[1:] for line in lines if not line.startswith("-")]
    else:
        return block[0]
    copied = html.escape("\n".join(lines)).replace("\n", "&#10;")
    return block[0].replace("<div ", f'<div data-copy="{copied}" ', 1)
