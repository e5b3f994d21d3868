"""Loaders of MONAI, torchdata and webdataset, each cut in a pass, at its end and in the next one: exact, or said and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.integrations.frameworks import table_of

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

_THREAD = "a thread of this process reads ahead and draws random numbers"
_FIRST = "batches are not those of before the restart"
_UNSEEDED = "two whole runs differ"
#: Not exact, with what is said; and those of which two whole runs differ, without spotguard.
OTHERS = {
    "MONAI Dataset, random transforms, persistent workers": "persistent_workers=True keeps",
    "MONAI ShuffleBuffer": _FIRST,
    "MONAI ThreadDataLoader": _THREAD,
    "MONAI ThreadDataLoader, buffer of 4": _THREAD,
    "torchdata nodes, prefetcher": _THREAD,
    "torchdata nodes, threads": _THREAD,
    "torchdata nodes, prefetcher of random transforms": _THREAD,
    "webdataset WebLoader, shuffled behind it": _UNSEEDED,
    "webdataset, resampled": _UNSEEDED,
    "webdataset, shuffle without a seed": _UNSEEDED,
}


def test_loaders_of_packages_go_on_bit_for_bit_or_say_that_they_do_not(tmp_path: Path) -> None:
    table = table_of("loaders", "loaders.py", tmp_path, 800)
    others = {name: what for name, what in table.items() if what != "exact"}
    assert len(table) - len(others) == 25
    assert {*others} == {*OTHERS}
    assert [name for name, text in OTHERS.items() if text not in others[name]] == []


def test_the_page_lists_the_loaders_that_are_not_exact() -> None:
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    section = page.partition("## Loaders")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    named = {name for row in rows[2:] for name in row.split("; ")}
    assert named == {*OTHERS}
