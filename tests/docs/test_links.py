"""No link of the documentation leads nowhere. (`mkdocs --strict`, in `make check`, refuses a page that the site does not list.)"""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import ROOT, anchors, links, pages


def _inside(page: Path) -> list[tuple[str, Path, str]]:
    found = [(link, *link.partition("#")[::2]) for link in links(page) if "://" not in link]
    return [(link, (page.parent / path).resolve() if path else page, anchor) for link, path, anchor in found]


def test_every_relative_link_leads_to_something() -> None:
    for page in pages():
        for link, target, anchor in _inside(page):
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                assert anchor in anchors(target), f"{page.name}: {link}"


def test_the_picture_of_the_readme_is_there() -> None:
    assert "docs/images/resumed.svg" in links(ROOT / "README.md")
