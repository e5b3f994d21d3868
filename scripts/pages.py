"""The hook of the docs site: home and version, what a copy button copies, pages for programs, and a check of each page.

Markdown ends a numbered list at a block that is not indented: the next item begins another list, with 1 again. A built page
is compared with its source for such cases. Each page is also there as Markdown, and `llms.txt` lists these.
"""

from __future__ import annotations

import html
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from inspect import getdoc
from pathlib import Path
from pydoc import locate
from typing import Any

ROOT = Path(__file__).parents[1]

_FENCE = re.compile(r"^(?P<indent> *)```\w*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(
    r'<div class="(?:language-(?P<language>\w+) )?highlight">(?P<code>.*?</code></pre>)', re.DOTALL
)
_TAG = re.compile(r"<[^>]*>")
#: A section of the README on a page, and a name of the package that a page documents.
_OF_README = re.compile(r"^<!-- README: (.+) -->$", re.MULTILINE)
_OF_CODE = re.compile(r"^::: (?P<name>[\w.]+)\n(?P<options>(?:    .*\n)*)", re.MULTILINE)
_MEMBERS = re.compile(r"members: \[(.*)\]")
#: A place in the repository, in the text of a page.
_INSIDE = re.compile(
    r"(?<!<span></span>)<code>((?:[^<]*[^\w./<-])?(?:tests|benchmarks|scripts|agent|hooks|providers|packaging)/[^<]*)</code>"
)
_COMMENT = re.compile(r"^ *<!-- .*? -->\n", re.MULTILINE)


class BrokenPageError(Exception):
    """Error for a built page that differs from its source."""


def on_config(config: Any) -> None:
    """Show the version, and link the project's places. mkdocs calls this."""
    for key, value in links(tomllib.loads((ROOT / "packaging" / "release.toml").read_text())).items():
        config[key] = value
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    config["copyright"] = f"spotguard {version}"


def links(places: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the site that link its places; none before the project has a home, as they would be dead."""
    if any("OWNER" in place for place in places.values()):
        return {}
    return {
        "site_url": f"{places['documentation']}/",
        "repo_url": places["repository"],
        "repo_name": "spotguard",
        "edit_uri": "edit/main/docs/",
    }


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the source of a page with the sections of the README that it asks for. mkdocs calls this."""
    return _OF_README.sub(lambda found: section((ROOT / "README.md").read_text(), found[1]), markdown)


def section(readme: str, heading: str) -> str:
    """Return a section of the README, with links that lead from the home page to the same places."""
    begun = readme.index(f"\n## {heading}\n") + 1
    return readme[begun : readme.find("\n## ", begun)].replace("](docs/", "](")


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Return the page, checked, with what each of its copy buttons copies. mkdocs calls this."""
    if not _OF_CODE.search(page.markdown):
        check(page.markdown, content)
    if cited := _INSIDE.findall(content):
        raise BrokenPageError(
            f"{page.file.src_uri}: {', '.join(cited)}: a reader of the site has no repository: write what is there"
        )
    return _BLOCK.sub(_copied, content)


def on_post_build(config: Any) -> None:
    """Write each page as Markdown beside its HTML, and `llms.txt` with all of them. mkdocs calls this."""
    site = Path(config["site_dir"])
    for page in _pages(_nav):
        site.joinpath(page.file.src_uri).write_text(for_programs(page.markdown))
    site.joinpath("llms.txt").write_text(listing(config["site_description"], _nav, config["site_url"] or ""))


#: The navigation of the build that runs.
_nav: list[Any] = []


def on_nav(nav: Any, **_: Any) -> None:
    """Keep the navigation for the pages for programs. mkdocs calls this."""
    _nav[:] = nav.items


def _pages(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if item.is_page:
            yield item
        else:
            yield from _pages(item.children)


def for_programs(markdown: str) -> str:
    """Return a page's Markdown without the notes for tests, and with the docstrings that it documents."""
    return _COMMENT.sub("", _OF_CODE.sub(_documented, markdown))


def _documented(found: re.Match[str]) -> str:
    members = _MEMBERS.search(found["options"])
    names = [
        found["name"],
        *(f"{found['name']}.{each}" for each in re.findall(r"\w+", members[1] if members else "")),
    ]
    return "\n".join(f"```text\n{name.rpartition('.')[2]}: {getdoc(locate(name))}\n```\n" for name in names)


def listing(description: str, items: Iterable[Any], base: str = "") -> str:
    """Return `llms.txt`: every page's title, its address as Markdown, and for whom it is."""
    lines = ["# spotguard", "", f"> {description}"]
    for item in items:
        lines += ["", f"## {item.title}", ""]
        for page in _pages([item]):
            lines.append(f"- [{page.title}]({base}{page.file.src_uri}): {_for_whom(page.markdown)}")
    return "\n".join(lines) + "\n"


def _for_whom(markdown: str) -> str:
    """Return the first line below a page's title."""
    text = markdown.partition("\n# ")[2] if not markdown.startswith("# ") else markdown
    return next(line for line in text.splitlines()[1:] if line.strip())


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
