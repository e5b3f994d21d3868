"""The built site: its pages have the lists and the code of their sources, and its copy buttons copy what is typed."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace

import pytest

from tests.docs.pages import ROOT

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
    return str(site.on_page_content(content, page=SimpleNamespace(markdown=source)))


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
