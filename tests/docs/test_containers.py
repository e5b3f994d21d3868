"""The pages of containers and Kubernetes say what the printed files say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spotguard
from spotguard.containers.manifests import GRACE, MANIFESTS, MARGIN, Cloud, window
from spotguard.doctor import cloud
from spotguard.providers.clock import SystemClock
from spotguard.providers.simulator.aws import AwsSimulator
from spotguard.providers.simulator.gcp import GcpSimulator
from tests.docs.pages import ROOT, blocks, section
from tests.docs.terminal import follows
from tests.fakes.patient import options

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


@pytest.mark.parametrize("name", ["EKS", "GKE"])
def test_what_is_quoted_of_the_doctor_is_what_it_says(name: str, tmp_path: Path) -> None:
    """Of a service that hides what that Kubernetes hides."""
    row = re.search(rf"^\| {name}.*`(FAILS[^`]*)` \|$", KUBERNETES.read_text(), re.MULTILINE)
    assert row is not None
    with AwsSimulator() if name == "EKS" else GcpSimulator(gke=True) as service:
        if name == "EKS":
            service.fault("hop-limit")
        said = options(provider=NAMES[name], metadata_endpoint=service.endpoint)
        found = [each for each in cloud.look(said, SystemClock(), tmp_path).findings if each.state == "fails"]
    assert follows([row[1].removeprefix("FAILS notices ")], found[0].found)
