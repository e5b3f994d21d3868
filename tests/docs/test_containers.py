"""The pages of containers and Kubernetes say what the printed files say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import spotguard
from spotguard.agent.core.peers import REJOIN
from spotguard.agent.process.torchrun import is_torchrun
from spotguard.cli.commands.guard.run import split
from spotguard.deploy.containers import GRACE, MANIFESTS, MARGIN, Cloud, window
from spotguard.doctor.checks import cloud
from spotguard.providers.clock import SystemClock
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.docs.messages import messages
from tests.docs.pages import ROOT, blocks, section
from tests.docs.terminal import follows
from tests.fakes.patient import options
from tests.kubernetes import container, environment

CONTAINERS = ROOT / "docs" / "how-to" / "launch" / "containers.md"
KUBERNETES = ROOT / "docs" / "how-to" / "launch" / "kubernetes.md"
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


def test_the_delays_of_the_next_pod_are_the_job_controllers() -> None:
    """kubernetes, pkg/controller/job: DefaultJobPodFailureBackOff is 10 s, MaxJobPodFailureBackOff 10 min, doubled with each failure, ignored or not."""
    below = section(KUBERNETES, "### How long the next pod waits")
    said = re.search(r"up to (\d+) min: ([\d,\s]+) s, and (\d+) s from the seventh on", below)
    assert said is not None
    delays = [min(10 * 2**failure, 600) for failure in range(7)]
    assert [int(each) for each in said[2].split(",")] == delays[:6]
    assert int(said[3]) == delays[6] == 60 * int(said[1])


def test_the_wait_of_those_that_stay_is_the_codes() -> None:
    minutes = f"for {REJOIN / 60:.0f} min"
    for page, heading in (
        (KUBERNETES, "### How long the next pod waits"),
        (KUBERNETES, "## Several pods"),
        (ROOT / "docs" / "how-to" / "launch" / "torchrun.md", "## The start after it"),
    ):
        assert minutes in section(page, heading)


def test_the_restarts_of_several_pods_are_the_manifests() -> None:
    pytest.importorskip("yaml")
    env = environment(container("indexed-job", "aws", "train"))
    row = "`SPOTGUARD_MAX_RESTARTS` is used up (10 in `indexed-job`, none in the others)"
    assert row.replace("10", env["SPOTGUARD_MAX_RESTARTS"]) in section(
        KUBERNETES, "### How a pod ends, exactly"
    )


def test_the_page_names_for_each_cloud_which_part_cordons_a_node() -> None:
    """And what a run says on a node that nobody has cordoned."""
    below = section(KUBERNETES, "## The next pod, and the same node")
    rows = re.findall(r"^\| (\w+)[^|]*\| (?:\S)", below, re.MULTILINE)
    assert set(NAMES) <= set(rows)
    (quoted,) = re.findall(r"and logs\n`([^`]+)`", below)
    assert any(quoted in piece for message in messages() for piece in message.pieces)


def test_the_two_lines_are_of_this_version() -> None:
    (lines,) = [block.text for block in blocks(CONTAINERS) if block.notes.get("file") == "Dockerfile.train"]
    assert f"=={spotguard.__version__}'" in lines


def after(image: str) -> list[str]:
    """What the page of containers says behind that image's name."""
    whole = CONTAINERS.read_text().replace("\\\n", "")
    (found,) = re.findall(rf"^ *\$ docker run .* {image} (.*)$", whole, re.MULTILINE)
    return shlex.split(found)


def test_arguments_of_an_image_are_those_of_its_first_process() -> None:
    """The printed Dockerfile's is `spotguard`; that of the two lines is `spotguard run --`. They have names of their own."""
    (lines,) = [block.text for block in blocks(CONTAINERS) if "file" in block.notes]
    entry = json.loads(lines.partition("ENTRYPOINT ")[2])
    for first, image in ((entry, "train"), (["spotguard"], "trainer")):
        words = [*first, *after(image)]
        assert words[:2] == ["spotguard", "run"]
        ours, command = split(words[2:])
        assert (ours, is_torchrun(command)) == ([], True)
    assert re.findall(r"^\$ docker build -t (\S+)", CONTAINERS.read_text(), re.MULTILINE) == [
        "spotguard",
        "trainer",
    ]


@pytest.mark.parametrize("name", ["EKS", "GKE"])
def test_quoted_lines_of_doctor_are_its_own(name: str, tmp_path: Path) -> None:
    """Of a service that hides what that Kubernetes hides."""
    row = re.search(rf"^\| {name}.*`(FAILS[^`]*)` \|$", KUBERNETES.read_text(), re.MULTILINE)
    assert row is not None
    with AwsSimulator() if name == "EKS" else GcpSimulator(gke=True) as service:
        if name == "EKS":
            service.fault("hop-limit")
        said = options(provider=NAMES[name], metadata_endpoint=service.endpoint)
        found = [each for each in cloud.look(said, SystemClock(), tmp_path).findings if each.state == "fails"]
    assert follows([row[1].removeprefix("FAILS notices ")], found[0].found)
