"""The manifests' pods on a node, without a cluster: their users, groups, mounts and commands, in real namespaces, with the agent
where the manifest has it. What the kubelet says is SIGTERM.

The job saves by itself (`spotguard.on_notice`), which needs no torch: what is tried is who hears what, and how it ends.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.ipc import control
from spotguard.agent.ipc.paths import SERVICE_SOCKET
from spotguard.deploy import containers
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.pods import Node, Pod
from tests.e2e.processes import Running, about, eventually
from tests.kubernetes import Words, container, environment, pod

pytestmark = pytest.mark.wholepath

NOTIFIED = [sys.executable, str(Path(__file__).parent / "programs" / "notified.py")]
SPOTGUARD = [sys.executable, "-m", "spotguard"]
SOCKETS = str(SERVICE_SOCKET.parent)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


def rights(name: str, called: str) -> dict[str, Any]:
    """Of a container: the pod's, and over them its own."""
    return {**pod(name, "aws")["securityContext"], **container(name, "aws", called)["securityContext"]}


class Agent:
    """The DaemonSet's pod on a node: its first container makes the folder, the second one watches."""

    def __init__(self, node: Node, aws: AwsSimulator, *, pids: bool = True) -> None:
        self._node = node
        self.words: Words = container("agent", "aws", "agent")
        self.rights = rights("agent", "agent")
        command = container("agent", "aws", "folder")["command"]
        made = node.on_the_host(rights("agent", "folder"), command, {SOCKETS: node.sockets}, pids=True)
        assert made.ended() == 0, made.account()
        # (Its own address is tried in test_true_address.py: here it would take the network from the test.)
        self.running = node.on_the_host(
            self.rights,
            [*SPOTGUARD, *self.words["args"]],
            {SOCKETS: node.sockets},
            {**environment(self.words), "SPOTGUARD_METADATA_ENDPOINT": aws.endpoint},
            pids=pids,
        )
        self.running.err.until("aws spot/instance-action: seeing")
        self.socket = node.sockets / SERVICE_SOCKET.name

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = control.status(self.socket)["sessions"]
        return found


def job(
    node: Node, in_pod: Pod, *, name: str = "job", groups: list[int] | None = None, endpoint: str = ""
) -> Running:
    """The manifest's container, with another command behind `spotguard run --`."""
    train = container(name, "aws", "train")
    assert train["command"][:3] == ["spotguard", "run", "--"]
    spec = rights(name, "train")
    if groups is not None:
        spec["supplementalGroups"] = groups
    said = {
        **environment(train),
        "SPOTGUARD_STORE": "file:///run/store",
        "SPOTGUARD_METADATA_ENDPOINT": endpoint,
    }
    mounts = {f"{SOCKETS}:ro": node.sockets} if name == "job" else {}
    return in_pod.container(spec, [*SPOTGUARD, "run", "--", *NOTIFIED], mounts, said)


def begun(running: Running) -> None:
    """Wait until the command has registered with its run."""
    running.out.until("^ready")
    path = Path(f"/proc/{running.pid}/root/run/own/spotguard/gpt-7b.sock")
    eventually(lambda: control.status(path)["sessions"], "registered")


def watched(running: Running) -> None:
    """Wait until the node's agent watches for it, too."""
    begun(running)
    running.err.until("watches for this run")


def leaves(running: Running, notice: str) -> None:
    """At that notice its command saves, and its first process, which is `spotguard run`, ends with 75."""
    running.out.until(f"^notice {notice}")
    running.say("return")
    running.err.until("COMMITTED")
    assert running.ended() == 75


def bare_of(node: Node, in_pod: Pod) -> Running:
    """The same container with the command alone, which is told where the agent is."""
    env = {"SPOTGUARD_SOCKET": str(SERVICE_SOCKET)}
    return in_pod.container(rights("job", "train"), NOTIFIED, {f"{SOCKETS}:ro": node.sockets}, env)


# --- beside the agent of the node ---


def test_a_pod_hears_of_the_notice_that_only_the_node_can_see(node: Node, aws: AwsSimulator) -> None:
    """Another user, another network, other process numbers, a read-only mount: the group is enough."""
    agent = Agent(node, aws)
    running = job(node, node.pod())
    watched(running)
    aws.preempt(120)
    leaves(running, f"terminate {about(containers.window('aws'))} ")
    assert agent.sessions() == [], "it registers with the run, and not with the agent"
    assert agent.running.running


def test_the_kubelets_sigterm_is_a_notice_with_the_pods_time(node: Node) -> None:
    """No agent is on the node, and nothing can be seen: a drain is heard all the same."""
    running = job(node, node.pod())
    begun(running)
    running.send(signal.SIGTERM)
    leaves(running, f"signal {about(containers.window('aws'))} ")


@pytest.mark.slow  # `tests/agent/core` has what becomes of two notices
def test_the_earlier_of_a_notice_and_a_drain_counts(node: Node, aws: AwsSimulator) -> None:
    Agent(node, aws)
    running = job(node, node.pod())
    watched(running)
    aws.preempt(100)
    running.out.until("^notice terminate ")
    running.send(signal.SIGTERM)  # 117 s from now
    running.err.until("another notice: signal")
    running.say("return")
    running.err.until("COMMITTED")
    assert running.ended() == 75
    assert "moved earlier" not in running.err.to_the_end()


def test_a_bare_process_of_a_pod_is_told_and_its_end_is_seen(node: Node, aws: AwsSimulator) -> None:
    """Registered with the agent itself, it has the number there that it has on the node."""
    agent = Agent(node, aws)
    bare = bare_of(node, node.pod())
    bare.out.until("^ready 1$")
    eventually(agent.sessions, "registered")
    assert [session["pid"] for session in agent.sessions()] == [bare.pid]
    aws.preempt(120)
    bare.out.until(f"^notice terminate {about(120)} ")
    bare.kill()
    agent.running.err.until("its process died before the commit")
    eventually(lambda: not agent.sessions(), "gone")


def test_without_the_nodes_process_numbers_only_runs_are_watched_for(node: Node, aws: AwsSimulator) -> None:
    """`hostPID: false`: the kernel tells no number across, so who registers directly is refused, and hears why."""
    Agent(node, aws, pids=False)
    bare_of(node, node.pod()).err.until("refuses this process: .* share the agent's PID namespace")
    running = job(node, node.pod())
    watched(running)
    aws.preempt(120)
    leaves(running, "terminate ")


def test_a_pod_without_the_group_looks_for_itself(node: Node, aws: AwsSimulator) -> None:
    """And says so; in a pod there is nothing to be seen."""
    Agent(node, aws)
    running = job(node, node.pod(), groups=[])
    running.err.until("not in the group of /run/spotguard")
    running.err.until("aws spot/instance-action: blind")
    running.out.until("^ready")


@pytest.mark.slow
def test_a_pod_that_is_there_before_the_agent_finds_it_later(node: Node, aws: AwsSimulator) -> None:
    """On a node that has just come, the kubelet starts both at once; until then it looks for itself."""
    running = job(node, node.pod())
    begun(running)
    running.err.until("the service agent at /run/spotguard/agent.sock does not answer")
    Agent(node, aws)
    running.err.until("watches for this run")
    aws.preempt(120)
    leaves(running, "terminate ")


def test_probes_of_the_kubelet_are_answered(node: Node, aws: AwsSimulator) -> None:
    """By the loop: an agent that hangs is not alive."""
    agent = Agent(node, aws)
    words = agent.words["livenessProbe"]["exec"]["command"]

    def asked() -> int:
        probe = node.on_the_host(agent.rights, [*SPOTGUARD, *words[1:]], {SOCKETS: node.sockets}, pids=True)
        return probe.ended()

    assert asked() == 0
    agent.running.send(signal.SIGSTOP)
    assert asked() != 0
    agent.running.send(signal.SIGCONT)


@pytest.mark.slow
def test_the_doctor_of_a_pod_knows_that_the_node_sees(node: Node, aws: AwsSimulator) -> None:
    """And that nobody does where there is no agent."""

    def notices(sockets: Path) -> tuple[str, str]:
        words = [*SPOTGUARD, "doctor", "--json", "--provider", "aws", "--store", "file:///run/store"]
        doctor = node.pod().container(rights("job", "train"), words, {f"{SOCKETS}:ro": sockets})
        doctor.ended()
        checks = json.loads(doctor.out.to_the_end())["checks"]
        (found,) = [each for each in checks if each["check"] == "notices"]
        return found["state"], found["found"]

    state, found = notices(node.empty_folder())
    assert state == "fails"
    assert found.startswith("BLIND (unreachable): aws spot/instance-action")
    Agent(node, aws)
    assert notices(node.sockets) == (
        "ok",
        f"seen by the machine's service, which runs here ask; from here {found}",
    )


# --- without one ---


def test_a_pod_on_the_nodes_network_sees_for_itself(node: Node, aws: AwsSimulator) -> None:
    assert pod("alone", "aws")["hostNetwork"]
    running = job(node, node.pod(host_network=True), name="alone", endpoint=aws.endpoint)
    begun(running)
    running.err.until("aws spot/instance-action: seeing")
    aws.preempt(120)
    leaves(running, "terminate ")


class Sidecar:
    """The manifest's pod: one user for both containers, one PID namespace, and a folder that is the agent's own in one that is
    everybody's."""

    def __init__(self, node: Node, aws: AwsSimulator) -> None:
        self._pod = node.pod(host_network=pod("sidecar", "aws")["hostNetwork"])
        self._folder = node.empty_folder()
        words = container("sidecar", "aws", "agent")
        env = {**environment(words), "SPOTGUARD_METADATA_ENDPOINT": aws.endpoint}
        self.agent = self.started("agent", [*SPOTGUARD, *words["args"]], env)
        self.agent.err.until("aws spot/instance-action: seeing")
        probe = words["startupProbe"]["exec"]["command"]
        asked = self.started("agent", [*SPOTGUARD, *probe[1:]])
        assert asked.ended() == 0, asked.account()
        self.train = container("sidecar", "aws", "train")
        self.running = self.started("train", NOTIFIED, environment(self.train))
        self.running.out.until("^ready")

    def started(self, name: str, words: list[str], env: dict[str, str] | None = None) -> Running:
        """In that container."""
        mounts = {f"{SOCKETS}:ro" if name == "train" else SOCKETS: self._folder}
        return self._pod.container(rights("sidecar", name), words, mounts, env, share_pids=True)


def test_a_sidecar_tells_the_command_beside_it(node: Node, aws: AwsSimulator) -> None:
    sidecar = Sidecar(node, aws)
    aws.preempt(120)
    sidecar.running.out.until(f"^notice terminate {about(120)} ")
    sidecar.running.say("return")
    sidecar.agent.err.until("COMMITTED")


def test_a_drain_of_a_pod_with_a_sidecar_is_a_notice_too(node: Node, aws: AwsSimulator) -> None:
    """Before it says SIGTERM the kubelet runs what the manifest has for that."""
    sidecar = Sidecar(node, aws)
    words = sidecar.train["lifecycle"]["preStop"]["exec"]["command"]
    asking = sidecar.started("train", [*SPOTGUARD, *words[1:]], environment(sidecar.train))
    sidecar.running.out.until(f"^notice drill {about(containers.window('aws'))} ")
    sidecar.running.say("return")
    assert asking.ended() == 0, asking.account()
    sidecar.agent.err.until("COMMITTED .* all processes were asked to leave")
