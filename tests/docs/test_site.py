"""The built site: its pages have the lists and the code of their sources, and readers and programs find what they look for."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.cases import cases
from tests.docs.pages import ROOT, pages

markdown = pytest.importorskip("markdown")
pytest.importorskip("pymdownx")

_spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "pages.py")
assert _spec is not None
assert _spec.loader is not None
site = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(site)

CONSOLE = "```console\n$ run \\\n    --all\n> more\nfirst line\n$ echo $?\n```\n"


def built(source: str) -> str:
    extensions = ["pymdownx.highlight", "pymdownx.superfences"]
    configs = {"pymdownx.highlight": {"pygments_lang_class": True}}
    content = markdown.markdown(source, extensions=extensions, extension_configs=configs)
    return str(
        site.on_page_content(
            content, page=SimpleNamespace(markdown=source, file=SimpleNamespace(src_uri="page.md"))
        )
    )


def indented(block: str) -> str:
    return re.sub("^", "    ", block, flags=re.MULTILINE).rstrip(" ")


def test_a_list_that_a_block_breaks_in_two_is_refused() -> None:
    with pytest.raises(site.BrokenPageError, match="1 numbered lists are 2 on the built page"):
        built(f"1. First:\n\n{CONSOLE}\n2. Second.\n")
    built(f"1. First:\n\n{indented(CONSOLE)}\n2. Second.\n")


def test_a_block_that_becomes_text_is_refused() -> None:
    with pytest.raises(site.BrokenPageError, match="another block of code"):
        site.check("```text\na\n```\n", "<p><code>text a</code></p>")


@pytest.mark.parametrize(
    ("source", "copied"),
    [
        (CONSOLE, "run \\&#10;    --all&#10;more&#10;echo $?"),
        ("```diff\n-old\n+new\n same\n```\n", "new&#10;same"),
    ],
)
def test_a_copy_button_copies_no_prompt_no_output_and_no_mark_of_a_diff(source: str, copied: str) -> None:
    assert re.findall('data-copy="(.*?)"', built(source)) == [copied]


def test_a_page_that_cites_the_repository_is_refused() -> None:
    with pytest.raises(site.BrokenPageError, match=r"^page.md: tests/x.py, see hooks/y: "):
        built("`tests/x.py` `see hooks/y`")
    built("`/var/lib/cloud/scripts/per-boot/` [tests](tests/x.md)\n\n```text\ntests/x.py\n```\n")


def test_the_site_links_its_repository_once_there_is_one() -> None:
    places = {"repository": "https://code.example.org/s", "documentation": "https://docs.example.org/s"}
    assert site.links(places)["repo_url"] == "https://code.example.org/s"
    assert site.links({**places, "repository": "https://code.example.org/OWNER/s"}) == {}


def test_the_home_page_shows_a_section_of_the_readme_with_its_own_links() -> None:
    readme = "# s\n\n## Use it\n[a](docs/a.md) [b](B.md)\n\n## Next\n"
    assert site.section(readme, "Use it") == "## Use it\n[a](a.md) [b](B.md)\n"


def test_a_page_for_programs_has_docstrings_and_no_notes_for_tests() -> None:
    text = site.for_programs(
        "<!-- not run: long -->\n::: spotguard.hooks.guard.Guard\n    options:\n      members: [save]\n"
    )
    assert "<!--" not in text
    assert "```text\nGuard: The link between" in text
    assert "```text\nsave: Save" in text


def test_the_list_for_programs_names_each_page_and_its_readers() -> None:
    page = SimpleNamespace(
        is_page=True,
        title="A",
        file=SimpleNamespace(src_uri="how-to/a.md"),
        markdown="# A\n\nFor you.\nMore.\n",
    )
    listed = site.listing(
        "What it is", [SimpleNamespace(is_page=False, title="Guides", children=[page])], "https://x/"
    )
    assert listed.endswith("\n> What it is\n\n## Guides\n\n- [A](https://x/how-to/a.md): For you.\n")


#: What people type into the search, and the page that they need.
SEARCHES = [
    ("enumerate", "how-to/recipes"),
    ("replay buffer", "how-to/recipes"),
    ("learning-rate schedule", "explanation/other-state"),
    ("exit code", "reference/commands"),
    ("exit code 75", "reference/commands"),
    ("uninstall", "tutorial"),
    ("change batch size", "explanation/other-state"),
    ("load checkpoint without spotguard", "how-to/export"),
    ("crash", "how-to/failures"),
    ("training hangs", "how-to/stalls"),
    ("experiment tracker", "how-to/marks"),
    ("coding agent", "how-to/coding-agents"),
]


@cases("query", SEARCHES)
def test_the_search_finds_what_people_look_for(query: tuple[str, str]) -> None:
    words, page = query
    assert page in found(words)[:3]


def found(query: str) -> list[str]:
    """The pages of the best sections, as the site's search orders them: each word of a title counts a thousand times."""
    words = [re.compile(rf"\b{word}", re.IGNORECASE) for word in re.split(r"[\s-]+", query)]
    scores = [
        (sum(1000 * bool(word.search(title)) + bool(word.search(text)) for word in words), -len(title), page)
        for page, title, text in sections()
    ]
    return [page for _, _, page in sorted(scores, reverse=True)]


def sections() -> Iterator[tuple[str, str, str]]:
    """Page, heading and text of each section of the site. (A heading's mark in a block of code is a comment.)"""
    for path in pages():
        if path.is_relative_to(ROOT / "docs"):
            page = path.relative_to(ROOT / "docs").with_suffix("").as_posix()
            for part in re.split(r"^(?=#+ [^\n]*\n\n)", path.read_text(), flags=re.MULTILINE)[1:]:
                title, _, text = part.partition("\n")
                yield page, title.lstrip("# "), text
