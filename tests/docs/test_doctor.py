"""The doctor's page knows every line and every value."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import get_args

from spotguard.doctor.finding import Check
from spotguard.doctor.run import visit
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.docs.pages import ROOT, section
from tests.fakes.patient import patient

PAGE = ROOT / "docs" / "reference" / "doctor.md"


def test_each_line_is_explained_and_no_other() -> None:
    for heading in ("## What each line means", "## For a program"):
        rows = re.findall(r"^\| (`[^|]*`) \|", section(PAGE, heading), re.MULTILINE)
        assert [word for row in rows for word in re.findall(r"`(\w+)`", row)] == list(get_args(Check)), (
            heading
        )


def test_each_value_is_named(tmp_path: Path, aws: AwsSimulator) -> None:
    rows = re.findall(r"^\| (`.*`) \| (`.*) \|$", section(PAGE, "## For a program"), re.MULTILINE)
    values = {word: said for checks, said in rows for word in re.findall(r"`(\w+)`", checks)}
    with closing(visit(patient(tmp_path, provider="aws", metadata_endpoint=aws.endpoint))) as findings:
        for finding in findings:
            for name in finding.facts:
                assert f"`{name}`" in values[finding.check], finding
