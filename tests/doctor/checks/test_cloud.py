"""What the doctor says of the cloud: one real look of the agent's own sources, and for each way to be blind the way out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spotguard.doctor.checks import cloud
from spotguard.doctor.finding import Finding
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.agent.sources.test_factory import machine
from tests.cli.test_health import CASES, SIMULATORS
from tests.fakes.patient import options
from tests.fixtures_simulator import SimulateAzure, SimulateGcp

#: What passes by itself is no reason to think that this machine would not save.
PASSES = {"starting", "throttled", "server-error"}


def notices(sight: cloud.CloudSight) -> list[Finding]:
    return [each for each in sight.findings if each.check == "notices"]


@pytest.mark.parametrize(("service", "fault", "reason"), CASES)
def test_each_way_to_be_blind_is_a_line_with_its_way_out(
    service: str, fault: str, reason: str, tmp_path: Path
) -> None:
    provider = service.split()[0]
    with SIMULATORS[service]() as simulator:
        if fault:
            simulator.fault(fault)
        said = options(provider=provider, metadata_endpoint=simulator.endpoint)
        sight = cloud.look(said, SystemClock(), tmp_path)
    blind = [each for each in notices(sight) if each.facts["reason"]]
    assert {each.facts["reason"] for each in blind} >= {reason}
    found = next(each for each in blind if each.facts["reason"] == reason)
    assert found.state == ("warning" if reason in PASSES else "fails")
    assert f"({reason})" in found.found
    assert found.advice
    assert sight.cloud == provider


def test_a_cause_common_to_all_keys_is_one_line(aws: AwsSimulator, tmp_path: Path) -> None:
    aws.fault("403")
    (found,) = notices(
        cloud.look(options(provider="aws", metadata_endpoint=aws.endpoint), SystemClock(), tmp_path)
    )
    assert found.found.startswith("BLIND (forbidden): aws spot/instance-action and 4 more: ")
    assert "--http-endpoint enabled" in found.advice
    assert len(found.facts["sources"]) == 5


@pytest.mark.parametrize("key", ["", "/latest/api/token"], ids=["any key", "the token"])
def test_one_answer_that_is_lost_blinds_nobody(aws: AwsSimulator, tmp_path: Path, key: str) -> None:
    """Without a token it would even be taken for a hop limit: the same look, again, tells which it was."""
    aws.fault("hang", count=1, path=key)
    sight = cloud.look(options(provider="aws", metadata_endpoint=aws.endpoint), SystemClock(), tmp_path)
    assert [(each.check, each.state) for each in sight.findings] == [("cloud", "ok"), ("notices", "ok")]


def test_a_cloud_that_answers_is_seen(aws: AwsSimulator, tmp_path: Path) -> None:
    sight = cloud.look(options(provider="aws", metadata_endpoint=aws.endpoint), SystemClock(), tmp_path)
    assert [(each.check, each.state) for each in sight.findings] == [("cloud", "ok"), ("notices", "ok")]
    assert notices(sight)[0].found == "seeing: aws spot/instance-action and 4 more"


def test_the_firmware_names_the_cloud(aws: AwsSimulator, tmp_path: Path) -> None:
    root = machine(tmp_path, sys_vendor="Amazon EC2")
    sight = cloud.look(options(metadata_endpoint=aws.endpoint), SystemClock(), root)
    assert sight.findings[0].found == "aws, by this machine's firmware (DMI)"
    assert notices(sight)[0].state == "ok"


def test_without_a_cloud_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr("socket.socket.connect", refuse)
    for said in (options(), options(provider="none")):
        sight = cloud.look(said, SystemClock(), machine(tmp_path / said.provider, sys_vendor="LENOVO"))
        (found,) = sight.findings
        assert (sight.cloud, found.state) == ("none", "warning")
        assert "--provider aws, azure or gcp" in found.advice
        assert cloud.dated(sight.cloud, said, SystemClock()) == {}


def test_firmware_that_is_hidden_is_not_taken_for_no_cloud(tmp_path: Path) -> None:
    """As a container may hide it."""
    (found,) = cloud.look(options(), SystemClock(), tmp_path).findings
    assert "not to be read: /sys/class/dmi/id" in found.found


def test_an_endpoint_of_nobody_knows_which_cloud_is_said_wrongly(aws: AwsSimulator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pass --provider aws, azure or gcp"):
        cloud.look(options(metadata_endpoint=aws.endpoint), SystemClock(), tmp_path)


def test_a_notice_that_stands_now_fails(aws: AwsSimulator, tmp_path: Path) -> None:
    aws.preempt()
    found = notices(
        cloud.look(options(provider="aws", metadata_endpoint=aws.endpoint), SystemClock(), tmp_path)
    )
    standing = next(each for each in found if "stands NOW" in each.found)
    assert (standing.state, "use another" in standing.advice) == ("fails", True)


def test_an_announced_notice_is_a_warning(aws: AwsSimulator, tmp_path: Path) -> None:
    aws.rebalance()
    found = notices(
        cloud.look(options(provider="aws", metadata_endpoint=aws.endpoint), SystemClock(), tmp_path)
    )
    assert [each.state for each in found] == ["ok", "warning"]
    assert found[1].found.startswith("announced: rebalance")


def test_azures_first_call_goes_on_without_us(simulate_azure: SimulateAzure, tmp_path: Path) -> None:
    """It may take two minutes; the doctor does not wait for them, and says so."""
    azure = simulate_azure(enabling=600.0)
    found = notices(
        cloud.look(options(provider="azure", metadata_endpoint=azure.endpoint), SystemClock(), tmp_path)
    )
    assert [each.state for each in found] == ["warning"]
    assert "may take 2 minutes" in found[0].found
    assert "run the doctor again in two minutes" in found[0].advice


def test_an_azure_machine_that_does_not_know_its_name_is_a_warning(
    simulate_azure: SimulateAzure, tmp_path: Path
) -> None:
    azure = simulate_azure(enabling=0.0)
    azure.fault("503", path="/compute/name")
    (found,) = notices(
        cloud.look(options(provider="azure", metadata_endpoint=azure.endpoint), SystemClock(), tmp_path)
    )
    assert (found.state, found.facts["sight"]) == ("warning", "seeing")
    assert "any event counts" in found.found
    assert "--vm-name" in found.advice


def test_a_pod_of_gkes_is_told_of_the_hosts_network(simulate_gcp: SimulateGcp, tmp_path: Path) -> None:
    pod = simulate_gcp(gke=True)
    found = notices(
        cloud.look(options(provider="gcp", metadata_endpoint=pod.endpoint), SystemClock(), tmp_path)
    )
    (hidden,) = [each for each in found if each.state == "fails"]
    assert "gcp instance/preempted" in hidden.facts["sources"]
    assert "hostNetwork: true" in hidden.advice


def test_gces_own_word_for_a_longer_notice_is_taken(gcp: GcpSimulator, tmp_path: Path) -> None:
    said = options(provider="gcp", metadata_endpoint=gcp.endpoint)
    assert cloud.look(said, SystemClock(), tmp_path).window is None
    gcp.put("instance/scheduling/preemption-notice-duration", b"120s")
    assert cloud.look(said, SystemClock(), tmp_path).window == 120.0


def test_a_look_that_hangs_is_left_behind(
    aws: AwsSimulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a source's own timeouts are."""
    never = threading.Event()
    monkeypatch.setattr(cloud, "LOOK", 0.2)
    monkeypatch.setattr(
        "spotguard.providers.clouds.aws.spot.InstanceAction.poll", lambda self: never.wait(60)
    )
    found = notices(
        cloud.look(options(provider="aws", metadata_endpoint=aws.endpoint), SystemClock(), tmp_path)
    )
    never.set()
    late = next(each for each in found if each.facts["reason"] == "overdue")
    assert (late.state, "firewall" in late.advice) == ("fails", True)


def test_the_services_own_time_is_heard(aws: AwsSimulator, tmp_path: Path) -> None:
    said = options(provider="aws", metadata_endpoint=aws.endpoint)
    assert "GMT" in cloud.dated("aws", said, SystemClock())["Date"]
    assert (
        cloud.dated("aws", options(provider="aws", metadata_endpoint="http://127.0.0.1:9"), SystemClock())
        == {}
    )
