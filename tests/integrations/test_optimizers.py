"""The optimizers of the package pytorch_optimizer, each cut behind steps 1, 3 and 5: exact, or known and on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.integrations.frameworks import table_of

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1800)]

#: Refused with this text at `register`, or at the boundary behind the first step.
REFUSED = {
    "conda": "holds optimizer.state[…]['projector'].ortho_matrix",
    "demo": "holds optimizer.transform.f_dict",
    "sara": "holds optimizer._mask_indices",
    "scalableshampoo": "holds optimizer.state[…]['graft'].momentum",
}


def test_the_optimizers_of_a_package_go_on_bit_for_bit(tmp_path: Path) -> None:
    table = table_of("optimizers", "optimizers.py", tmp_path, 1700)
    inexact = {name: what for name, what in table.items() if what != "exact"}
    assert len(table) - len(inexact) == 124
    assert {*inexact} == {*REFUSED}
    assert [name for name, text in REFUSED.items() if text not in inexact[name]] == []


def test_the_page_lists_the_optimizers_that_are_not_exact() -> None:
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    section = page.partition("## Optimizers")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {name.lower() for name in named} == {*REFUSED}
