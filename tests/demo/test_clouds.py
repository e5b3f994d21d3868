"""Each cloud's manners, as far as they can be read off without playing them; the whole demo plays them."""

from __future__ import annotations

import pytest

from spotguard.demo.clouds import CLOUDS
from spotguard.providers.simulator.cli import CLOUDS as SIMULATED


def test_every_cloud_that_is_simulated_can_be_demonstrated() -> None:
    assert set(CLOUDS) == set(SIMULATED)
    assert all(name == cloud.name for name, cloud in CLOUDS.items())


@pytest.mark.parametrize("name", CLOUDS)
def test_the_notice_stands_at_the_metadata_endpoint(name: str) -> None:
    """On a service of its own; the machine goes when it was said."""
    cloud = CLOUDS[name]
    with cloud.simulator() as simulator:
        before = simulator.clock.monotonic()
        cloud.preempt(simulator, 17.0)
        assert simulator.deadline is not None
        assert before + 17.0 <= simulator.deadline <= simulator.clock.monotonic() + 17.0


@pytest.mark.parametrize("name", ["aws", "azure"])
def test_a_notice_with_a_time_says_it(name: str) -> None:
    cloud = CLOUDS[name]
    assert "in 17 s" in cloud.words(17.0)
    assert cloud.button(17.0) is None
    assert cloud.options(200.0) == []


def test_on_gcp_the_power_button_comes_30_s_before_the_end() -> None:
    """With the notice, unless the VM was made with a notice duration, which then has to be said."""
    gcp = CLOUDS["gcp"]
    assert (gcp.button(10.0), gcp.options(10.0)) == (0.0, [])
    assert (gcp.button(30.0), gcp.options(30.0)) == (0.0, [])
    assert (gcp.button(150.0), gcp.options(150.0)) == (120.0, ["--window", "150"])
    assert "ACPI" in gcp.words(30.0)
    assert "ACPI" not in gcp.words(150.0)
