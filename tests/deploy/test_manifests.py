"""The Kubernetes manifests, as they are printed for each cloud: what the published schema says of them, and whether they agree
with each other and with the code.

No API server is here: what one does with them is not tried.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from typing import get_args

import pytest

import spotguard
from spotguard.agent.config import resolve
from spotguard.agent.config.settings import SETTINGS
from spotguard.agent.core.peers import REJOIN
from spotguard.agent.ipc.paths import SERVICE_SOCKET
from spotguard.agent.process.helpers import node_label
from spotguard.agent.process.helpers.node_label import LABEL
from spotguard.agent.process.torchrun import is_torchrun
from spotguard.cli.commands.guard.run import split
from spotguard.deploy import containers as deployed
from spotguard.deploy.containers import MANIFESTS, Cloud
from tests.cases import cases
from tests.kubernetes import Words, container, containers, documents, environment, one, pod

pytest.importorskip("yaml")

CLOUDS = get_args(Cloud)
JOBS = [name for name in MANIFESTS if name != "agent"]
PRINTED = [(name, cloud) for name in MANIFESTS for cloud in CLOUDS]


def terms(name: str) -> list[Words]:
    """The nodes on which a pod may run: one of these terms has to fit."""
    node = pod(name, "aws")["affinity"]["nodeAffinity"]
    found: list[Words] = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return found


def kinds_of_nodes(name: str) -> list[list[Words]]:
    return [[each for each in term["matchExpressions"] if each["key"] != LABEL] for term in terms(name)]


def volume(name: str, cloud: Cloud) -> Words:
    found: Words
    (found,) = [each for each in pod(name, cloud)["volumes"] if each["name"] == "socket"]
    return found


# --- as Kubernetes reads them ---


@pytest.fixture(scope="module")
def _each_schema_is_read_once() -> Iterator[None]:
    """The validator reads a megabyte of JSON for each document."""
    utils = pytest.importorskip("kubernetes_validate").utils
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


@pytest.mark.usefixtures("_each_schema_is_read_once")
@cases("version", ["1.31", "1.37"])  # the first with a stable podFailurePolicy, and the newest
@cases("name, cloud", [*PRINTED, ("node-label", None)])
def test_a_manifest_is_what_the_schema_says(name: str, cloud: Cloud | None, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in documents(name, cloud):
        validate(document, version, strict=True)


def test_the_schema_would_notice() -> None:
    schema = pytest.importorskip("kubernetes_validate")
    job = one("job", "aws", "Job")
    job["spec"]["template"]["spec"]["containers"][0]["comand"] = ["true"]
    with pytest.raises(schema.ValidationError):
        schema.validate(job, "1.37", strict=True)


@cases("name, cloud", PRINTED)
def test_each_mount_of_a_container_has_its_volume(name: str, cloud: Cloud) -> None:
    there = {each["name"] for each in pod(name, cloud)["volumes"]}
    mounted = {mount["name"] for each in containers(name, cloud) for mount in each["volumeMounts"]}
    assert mounted == there


@cases("name, cloud", PRINTED)
def test_an_agent_has_the_agents_image_and_a_job_has_its_own(name: str, cloud: Cloud) -> None:
    for each in containers(name, cloud):
        assert (each["image"] == f"{deployed.IMAGE}:{spotguard.__version__}") is (
            each["name"] in ("agent", "folder")
        )


# --- as spotguard reads them ---


@cases("name, cloud", PRINTED)
def test_every_variable_is_an_option_and_its_value_is_taken(name: str, cloud: Cloud) -> None:
    for each in containers(name, cloud):
        env = environment(each)
        assert resolve.unknown_variables(env) == []
        options = resolve.resolve("agent" if each["name"] == "agent" else "run", {}, env)
        assert options.provider == (cloud if "SPOTGUARD_PROVIDER" in env else "auto")
    assert pod(name, cloud)["enableServiceLinks"] is False, (
        "a Service of this name would add variables of its own"
    )


@pytest.mark.parametrize(("name", "cloud"), [(name, cloud) for name in JOBS for cloud in CLOUDS])
def test_a_sigterm_is_worth_what_the_kubelet_gives(name: str, cloud: Cloud) -> None:
    """Where no `spotguard run` hears it, the agent is asked before, for as long."""
    train = container(name, cloud, "train")
    grace = pod(name, cloud)["terminationGracePeriodSeconds"]
    assert grace == deployed.GRACE[cloud]
    said = environment(train).get("SPOTGUARD_WINDOW")
    if train["command"][0] == "spotguard":
        assert float(said or 0) == grace - deployed.MARGIN
    else:
        asking = train["lifecycle"]["preStop"]["exec"]["command"]
        assert float(asking[asking.index("--window") + 1]) == grace - deployed.MARGIN
        assert asking[asking.index("--socket") + 1] == environment(train)["SPOTGUARD_SOCKET"]
        assert said is None


@pytest.mark.parametrize("name", JOBS)
def test_a_preemption_charges_nothing(name: str) -> None:
    """By the code that `run` ends with, of the container in which it is; and by what the control plane says of a pod."""
    spec = one(name, "aws", "Job")["spec"]
    (code,) = [setting.default for setting in SETTINGS if setting.name == "exit-code"]
    ignored = [rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "Ignore"]
    assert ignored == [
        {
            "action": "Ignore",
            "onExitCodes": {"containerName": "train", "operator": "In", "values": [code]},
        },
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    assert spec["podFailurePolicy"]["rules"][: len(ignored)] == ignored, "the first rule that fits decides"
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "or there is no podFailurePolicy"
    assert spec["podReplacementPolicy"] == "Failed"
    container(name, "aws", "train")


@pytest.mark.parametrize("name", MANIFESTS)
def test_nobody_is_the_first_to_go_when_a_node_is_short_of_memory(name: str) -> None:
    """Who asks for none is `BestEffort`. A job that has no limit may fill the node, and what ends it then is ignored."""
    for each in containers(name, "aws"):
        asked, most = each["resources"]["requests"]["memory"], each["resources"]["limits"]["memory"]
        assert most == asked or each["name"] != "train"
    if name in JOBS:
        assert "137" not in str(one(name, "aws", "Job")["spec"]["podFailurePolicy"]), (
            "who is over it has crashed"
        )


@pytest.mark.parametrize("name", JOBS)
def test_a_pod_resumes_under_the_jobs_name(name: str) -> None:
    job = one(name, "aws", "Job")
    env = environment(container(name, "aws", "train"))
    assert env["SPOTGUARD_RUN_ID"] == job["metadata"]["name"]
    assert env["SPOTGUARD_STORE"].startswith("s3://")


@pytest.mark.parametrize("name", [name for name in JOBS if name != "sidecar"])
def test_the_command_is_guarded(name: str) -> None:
    """As the container's first process: no shell stands in front, which would keep SIGTERM to itself."""
    words = container(name, "aws", "train")["command"]
    assert words[:2] == ["spotguard", "run"]
    ours, command = split(words[2:])
    assert ours == []
    assert is_torchrun(command)


@pytest.mark.parametrize("name", ["agent", "sidecar"])
def test_probes_ask_the_agent_at_its_socket(name: str) -> None:
    agent = container(name, "aws", "agent")
    words = agent["args"]
    assert words[0] == "agent"
    there = words[words.index("--socket") + 1] if "--socket" in words else str(SERVICE_SOCKET)
    for probe in ("startupProbe", "livenessProbe"):
        assert shlex.join(agent[probe]["exec"]["command"]) == f"spotguard status --socket {there} --json"
    assert agent["volumeMounts"][0]["mountPath"] in there
    if name == "sidecar":
        assert environment(container(name, "aws", "train"))["SPOTGUARD_SOCKET"] == there
        assert agent["restartPolicy"] == "Always", "or the job would wait for its end"
        assert pod(name, "aws")["shareProcessNamespace"] is True


# --- the agent of a node, and the pods beside it ---


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_manifest_wants_something_of_its_node(name: str) -> None:
    """Which is why Autopilot and Fargate refuse it: their network, processes and folders are nobody's. `job` wants the socket alone."""
    spec = pod(name, "aws")
    wants = {key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)}
    wants |= {each["name"] for each in spec["volumes"] if "hostPath" in each}
    assert wants
    if name == "job":
        assert wants == {"socket"}


@pytest.mark.parametrize("name", ["agent", "job", "indexed-job"])
def test_all_of_a_node_mean_one_folder(name: str) -> None:
    assert volume(name, "aws")["hostPath"]["path"] == str(SERVICE_SOCKET.parent)
    for each in containers(name, "aws"):
        (mount,) = [mount for mount in each["volumeMounts"] if mount["name"] == "socket"]
        assert mount["mountPath"] == str(SERVICE_SOCKET.parent)
        # A job's word on the folder could be another socket.
        assert mount.get("readOnly", False) is (each["name"] == "train")


def test_the_folder_is_the_agents_and_its_group_is_the_jobs() -> None:
    agent = container("agent", "aws", "agent")["securityContext"]
    command = container("agent", "aws", "folder")["command"]
    assert shlex.join(command) == (
        f"install -d -m 0750 -o {agent['runAsUser']} -g {agent['runAsGroup']} {SERVICE_SOCKET.parent}"
    )
    for name in ("job", "indexed-job"):
        assert pod(name, "aws")["securityContext"]["supplementalGroups"] == [agent["runAsGroup"]]
    assert f"\nUSER {agent['runAsUser']}:{agent['runAsGroup']}\n" in deployed.text("dockerfile")


def test_the_agent_sees_what_its_node_sees_and_goes_where_jobs_go() -> None:
    spec = pod("agent", "aws")
    assert (spec["hostNetwork"], spec["hostPID"]) == (True, True)
    assert spec["tolerations"] == [{"operator": "Exists"}]
    for name in JOBS:
        assert kinds_of_nodes(name) == kinds_of_nodes("agent")
        assert pod(name, "aws").get("hostNetwork", False) is (name in ("alone", "sidecar"))


@pytest.mark.parametrize("name", MANIFESTS)
def test_nobody_has_more_than_is_needed(name: str) -> None:
    """Only the folder is made by root, with the two rights that this takes."""
    spec = pod(name, "aws")
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in containers(name, "aws"):
        own = each["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"]["drop"] == ["ALL"]
        assert own["capabilities"].get("add", []) == (["CHOWN", "FOWNER"] if each["name"] == "folder" else [])
        root = {**spec["securityContext"], **own}.get("runAsUser") == 0
        assert root is (each["name"] == "folder")
        assert own.get("readOnlyRootFilesystem", False) is (each["name"] in ("agent", "folder"))
        assert "privileged" not in own


# --- a node whose machine failed ---


@pytest.mark.parametrize("name", JOBS)
def test_a_job_comes_back_to_no_node_that_was_labelled_and_the_agent_does(name: str) -> None:
    """A pod fits if one of the terms does, so each of them has to say it."""
    healthy = {"key": LABEL, "operator": "DoesNotExist"}
    assert all(healthy in each["matchExpressions"] for each in terms(name))
    assert not any(healthy in each["matchExpressions"] for each in terms("agent"))


@pytest.mark.parametrize("name", [name for name in JOBS if name != "sidecar"])
def test_a_job_knows_the_name_of_its_node(name: str) -> None:
    (found,) = [each for each in container(name, "aws", "train")["env"] if each["name"] == node_label.NODE]
    assert found["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_the_right_to_label_a_node_is_that_of_the_jobs_account_and_of_its_own_node() -> None:
    policy, bound, role, binding = documents("node-label", None)  # a right is not there before its limit
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (account,) = binding["subjects"]
    assert account["name"] == pod("job", "aws")["serviceAccountName"]
    (condition,) = policy["spec"]["matchConditions"]
    assert f'"system:serviceaccount:{account["namespace"]}:{account["name"]}"' in condition["expression"]
    own_node, own_label = policy["spec"]["validations"]
    assert '["authentication.kubernetes.io/node-name"][0] == request.name' in own_node["expression"]
    assert own_label["expression"].count(f'"{LABEL}"') == 2
    assert {own_node["reason"], own_label["reason"]} == {
        "Forbidden"
    }  # the agent names what is missing at a 403
    assert bound["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


# --- several pods ---


def test_the_pods_of_one_job_find_each_other() -> None:
    """torchrun's words, the Job's numbers and the Service's names are the same."""
    job, service = one("indexed-job", "aws", "Job"), one("indexed-job", "aws", "Service")
    name, spec = job["metadata"]["name"], job["spec"]
    words = dict(
        word.split("=", 1) for word in container("indexed-job", "aws", "train")["command"] if "=" in word
    )
    assert spec["completionMode"] == "Indexed"
    assert int(words["--nnodes"]) == spec["completions"] == spec["parallelism"]
    assert words["--node-rank"] == "$(JOB_COMPLETION_INDEX)"
    assert words["--master-addr"] == f"{name}-0.{service['metadata']['name']}"
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


#: Seconds: MaxJobPodFailureBackOff (kubernetes, pkg/controller/job), and what a node with GPUs takes to boot and to fetch an image.
LATEST_POD, NODE = 600, 900


@pytest.mark.torch
def test_the_pods_that_stay_wait_for_one_that_the_job_makes_late() -> None:
    """`run` as long as torchrun, and both beyond the Job's longest delay."""
    run = pytest.importorskip("torch.distributed.run")
    command = container("indexed-job", "aws", "train")["command"]
    torchrun = command[command.index("torchrun") + 1 :]
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in torchrun]
    found, _, _ = run.config_from_args(run.get_args_parser().parse_args(words))
    assert found.rdzv_backend == "static"
    assert float(found.rdzv_configs["timeout"]) == REJOIN
    assert REJOIN >= LATEST_POD + NODE


def test_the_pods_that_crash_with_another_begin_again_by_themselves() -> None:
    """The Job would count it, for as long as it lives."""
    env = environment(container("indexed-job", "aws", "train"))
    assert resolve.resolve("run", {}, env).max_restarts >= 10
    for name in JOBS:
        if name != "indexed-job":
            assert "SPOTGUARD_MAX_RESTARTS" not in environment(container(name, "aws", "train"))
