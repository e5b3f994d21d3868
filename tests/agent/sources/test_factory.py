"""Which sources an option names: nothing is asked on the network that nobody named."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.agent.config.options import Options
from spotguard.agent.config.resolve import resolve
from spotguard.agent.sources import factory
from spotguard.providers.clock import SystemClock
from spotguard.providers.clouds.azure.source import AzureScheduledEvents
from spotguard.providers.errors import UsageError


def options(**flags: str) -> Options:
    return resolve("agent", {name.replace("_", "-"): value for name, value in flags.items()}, {})


def machine(root: Path, **dmi: str) -> Path:
    """A machine whose firmware says this."""
    folder = root / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    for name, value in dmi.items():
        (folder / name).write_text(value)
    return root


def test_aws_is_watched_where_it_is_named_and_where_the_firmware_names_it(tmp_path: Path) -> None:
    """Each call makes its own: a source belongs to the thread that looks through it."""
    root = machine(tmp_path, sys_vendor="Amazon EC2")
    for said in (options(provider="aws"), options()):
        make = factory.cloud_sources(said, SystemClock(), root)
        ones, others = make(), make()
        assert [one.name for one in ones] == [
            "aws spot/instance-action",
            "aws spot/termination-time",
            "aws events/recommendations/rebalance",
            "aws events/maintenance/scheduled",
            "aws autoscaling/target-lifecycle-state",
        ]
        assert not set(map(id, ones)) & set(map(id, others))


def test_azure_is_watched_where_it_is_named_and_where_the_firmware_names_it(tmp_path: Path) -> None:
    """With the name that somebody gave."""
    root = machine(tmp_path, chassis_asset_tag="7783-7084-3265-9085-8269-3286-77")
    for said in (options(provider="azure"), options(vm_name="pool-vmss_12")):
        (source,) = factory.cloud_sources(said, SystemClock(), root)()
        assert isinstance(source, AzureScheduledEvents)
        assert source.name == "azure scheduledevents"


def test_a_laptop_has_no_source(tmp_path: Path) -> None:
    """And neither has `none` on a cloud."""
    laptop = machine(tmp_path / "a", sys_vendor="LENOVO")
    assert factory.cloud_sources(options(), SystemClock(), laptop)() == []
    cloud = machine(tmp_path / "b", sys_vendor="Amazon EC2")
    assert factory.cloud_sources(options(provider="none"), SystemClock(), cloud)() == []


def test_an_endpoint_that_nobody_asks_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`none` means none, whatever stands beside it, as in a file for all machines. A word to whoever meant the endpoint."""
    said = options(provider="none", metadata_endpoint="http://127.0.0.1:1338")
    assert factory.cloud_sources(said, SystemClock(), tmp_path)() == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("--metadata-endpoint http://127.0.0.1:1338 is not used: --provider none")


def test_gcp_is_watched_where_it_is_named_and_where_the_firmware_names_it(tmp_path: Path) -> None:
    """The terminal key twice, each key by itself; each call makes its own."""
    root = machine(tmp_path, product_name="Google Compute Engine")
    for said in (options(provider="gcp"), options()):
        make = factory.cloud_sources(said, SystemClock(), root)
        ones, others = make(), make()
        assert [one.name for one in ones] == [
            "gcp instance/preempted",
            "gcp instance/preempted, plain GET",
            "gcp instance/maintenance-event",
            "gcp instance/upcoming-maintenance",
            "gcp instance/shutdown-details/stop-state",
        ]
        assert not set(map(id, ones)) & set(map(id, others))


def test_an_endpoint_without_a_cloud_must_say_whose_it_is(tmp_path: Path) -> None:
    """Whoever names an endpoint wants it asked."""
    said = options(metadata_endpoint="http://127.0.0.1:9")
    with pytest.raises(UsageError, match="--provider aws"):
        factory.cloud_sources(said, SystemClock(), machine(tmp_path, sys_vendor="LENOVO"))
