"""The pods of indexed-job.yaml as machines of a rack: torchrun's words are the manifest's, and the Service's names are in everybody's hosts.

A pod is preempted, or gone without a word; its replacement has its index and its name, and another address. The control plane is the test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machines import Node, Rack
from tests.e2e.processes import eventually
from tests.e2e.sharded import PROGRAM, Sharded
from tests.kubernetes import container, environment

pytest.importorskip("torch")
pytest.importorskip("yaml")

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]


class Indexed(Sharded):
    """One rank in each of two pods."""

    def __init__(self, rack: Rack, options: str = "--every off") -> None:
        super().__init__(rack, "2")
        train = container("indexed-job", "aws", "train")
        words, self._beside = train["command"], options
        self.restarts = environment(train)["SPOTGUARD_MAX_RESTARTS"]
        assert words[:4] == ["spotguard", "run", "--", "torchrun"]
        said = [word for word in words[4:] if word.startswith("--") and not word.startswith("--n")]
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        program = [str(PROGRAM), "100000", str(self._limit)]
        self._words = [torchrun, "--nnodes=2", "--nproc-per-node=1", *said, *program]
        self._words.insert(1, next(word for word in words if word.startswith("--node-rank=")))
        self._pods: dict[int, Node] = {}

    def place(self, index: int, node: Node) -> None:
        """The pod of that index runs there from now on: the Service says so to everybody, and it begins."""
        self._pods[index] = node
        names = "".join(f"{each.address} gpt-7b-{n}.gpt-7b\n" for n, each in self._pods.items())
        for each in self._pods.values():
            hosts = each.folder / "hosts"
            kept = "".join(line for line in hosts.read_text().splitlines(True) if "gpt-7b" not in line)
            hosts.write_text(kept + names)
        self._command = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in self._words]
        self.begin(node, options=self._beside, SPOTGUARD_MAX_RESTARTS=self.restarts)


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


@pytest.mark.soak
@pytest.mark.parametrize("index", [0, 1], ids=["where-they-met", "another"])
def test_a_pod_is_replaced_under_its_name_and_the_job_goes_on(rack: Rack, index: int) -> None:
    """It ends with 75, and the other one begins again by itself; they meet where the new pod 0 is."""
    job = Indexed(rack)
    nodes = [rack.add(), rack.add()]
    for each, node in enumerate(nodes):
        job.place(each, node)
    first = job.world(*nodes)
    assert (first, job.restored(first)) == (nodes[0], 0)
    job.allow(5)
    job.stepped(first, 5)

    going = nodes[index]
    going.preempt(60)
    assert job.runs[going].ended() == 75
    going.take()
    nodes[index] = rack.add()
    job.place(index, nodes[index])
    first = job.world(*nodes)
    assert (first, job.restored(first)) == (nodes[0], 5)
    job.allow(8)
    job.stepped(first, 8)
    job.as_if_alone()


@pytest.mark.soak
@pytest.mark.parametrize("index", [0, 1], ids=["where-they-met", "another"])
def test_a_pod_that_goes_without_a_word_ends_no_other(rack: Rack, index: int) -> None:
    """The other one's torchrun crashes with it, and `run` begins it again: it waits for the next pod, and they go on from a checkpoint."""
    job = Indexed(rack, "--every 1")
    nodes = [rack.add(), rack.add()]
    for each, node in enumerate(nodes):
        job.place(each, node)
    first = job.world(*nodes)
    job.restored(first)
    job.allow(100_000)
    eventually(job.committed, "a checkpoint beside training")

    other = job.runs[nodes[1 - index]]
    nodes[index].start("kill", "-KILL", "-1").ended()
    other.err.until(f"it crashed with 1, restart 1 of {job.restarts}")
    nodes[index].take()
    nodes[index] = rack.add()
    job.place(index, nodes[index])
    first = job.world(*nodes)
    assert first == nodes[0]
    done = job.restored(first)
    assert done > 0
    job.stepped(first, done + 3)
    assert other.running
    job.as_if_alone()
