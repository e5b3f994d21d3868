"""No link of the documentation leads nowhere, and no page is out of reach."""

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


def test_every_page_is_reached_from_the_readme() -> None:
    reached, left = set[Path](), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in reached:
            reached.add(page)
            left += [target for _, target, _ in _inside(page) if target.suffix == ".md"]
    assert set(pages()) <= reached


def test_the_picture_of_the_demo_is_there() -> None:
    assert "docs/demo.svg" in links(ROOT / "README.md")
