"""The pages of containers and Kubernetes say what the printed files say."""

from __future__ import annotations

import re

import spotguard
from spotguard.containers.manifests import GRACE, MANIFESTS, MARGIN, Cloud, window
from tests.docs.pages import ROOT, blocks, section

KUBERNETES = ROOT / "docs" / "kubernetes.md"
NAMES: dict[str, Cloud] = {"EKS": "aws", "GKE": "gcp", "AKS": "azure"}


def test_the_seconds_of_each_cloud_are_those_of_its_manifests() -> None:
    below = section(KUBERNETES, "## How long a pod has")
    rows = re.findall(r"^\| (\w+) \| .* \| (\d+) \| (\d+) \|$", below, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(NAMES)
    for name, grace, said in rows:
        assert (int(grace), int(said)) == (GRACE[NAMES[name]], window(NAMES[name]))
    assert f"less {MARGIN} s" in below


def test_every_manifest_has_its_row() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ", KUBERNETES.read_text().partition("\n## ")[0], re.MULTILINE)
    assert rows == list(MANIFESTS)


def test_the_two_lines_are_of_this_version() -> None:
    (lines,) = [
        block.text
        for block in blocks(ROOT / "docs" / "containers.md")
        if block.notes.get("file") == "Dockerfile.train"
    ]
    assert f"=={spotguard.__version__}'" in lines
