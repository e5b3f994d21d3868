"""The differences between clouds in the demo: the warning's length, its text, and the events that come with it.

Importing this module loads no simulator: the demo needs only the one that it plays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from spotguard.providers.simulator.base import Simulator

#: Seconds from ACPI's power button to the end, on GCP.
_SHUTDOWN = 30.0


class DemoCloud(ABC):
    """All that the demo knows of one cloud."""

    #: The cloud's name for `--provider`.
    name: ClassVar[str]
    #: The cloud's name in text.
    title: ClassVar[str]
    #: Seconds of warning, by the cloud's documentation.
    window: ClassVar[float]

    @abstractmethod
    def simulator(self) -> Simulator:
        """Return the metadata service of one machine, not yet started."""

    @abstractmethod
    def preempt(self, simulator: Simulator, window: float) -> None:
        """Issue the notice that the machine ends in `window` seconds."""

    @abstractmethod
    def words(self, window: float) -> str:
        """Return the notice in words for a person."""

    def options(self, window: float) -> list[str]:
        """Return the options of `spotguard run` on this cloud's machines, beside the provider and its endpoint."""
        return []

    def button(self, window: float) -> float | None:
        """Return the seconds from the notice to the SIGTERM for all processes on the machine; None if none comes."""
        return None


class _Aws(DemoCloud):
    name, title, window = "aws", "AWS", 120.0

    def simulator(self) -> Simulator:
        from spotguard.providers.simulator.aws.service import AwsSimulator

        return AwsSimulator()

    def preempt(self, simulator: Simulator, window: float) -> None:
        from spotguard.providers.simulator.aws.service import AwsSimulator

        assert isinstance(simulator, AwsSimulator)
        simulator.preempt(window)

    def words(self, window: float) -> str:
        return f"spot/instance-action is terminate, in {window:g} s"


class _Gcp(DemoCloud):
    """Google Cloud: `preempted` holds no time, and turns TRUE as the operating system is told to shut down.

    So the save begins while all processes on the machine get SIGTERM.
    """

    name, title, window = "gcp", "GCP", _SHUTDOWN

    def simulator(self) -> Simulator:
        from spotguard.providers.simulator.gcp.service import GcpSimulator

        return GcpSimulator()

    def preempt(self, simulator: Simulator, window: float) -> None:
        from spotguard.providers.simulator.gcp.service import GcpSimulator

        assert isinstance(simulator, GcpSimulator)
        simulator.preempt(window)

    def words(self, window: float) -> str:
        if self.button(window):
            return "instance/preempted is TRUE"
        return "instance/preempted is TRUE, and ACPI's power button is pressed: SIGTERM to everything on it"

    def options(self, window: float) -> list[str]:
        # A VM that was created with a notice duration cannot read it, so --window must state it.
        return ["--window", f"{window:g}"] if window > _SHUTDOWN else []

    def button(self, window: float) -> float | None:
        return max(0.0, window - _SHUTDOWN)


class _Azure(DemoCloud):
    """Azure: the machine belongs to a scale set whose machines are all evicted, so its list of events names all of them."""

    name, title, window = "azure", "Azure", 30.0

    def simulator(self) -> Simulator:
        from spotguard.providers.simulator.azure.service import AzureSimulator

        return AzureSimulator(others=3, enabling=3.0, capitals=True)

    def preempt(self, simulator: Simulator, window: float) -> None:
        from spotguard.providers.simulator.azure.service import AzureSimulator

        assert isinstance(simulator, AzureSimulator)
        simulator.preempt(window, of="all")

    def words(self, window: float) -> str:
        return f"scheduled events list Preempt of four machines, this one among them, in {window:g} s"


#: The clouds by name. A new cloud is one more entry.
CLOUDS: Mapping[str, DemoCloud] = {cloud.name: cloud for cloud in (_Aws(), _Gcp(), _Azure())}
