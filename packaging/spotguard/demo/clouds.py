"""What differs from cloud to cloud, as the demo plays it: how long the warning is, what it says, and what comes with it.

Importing it loads no simulator: only the one that is played is needed.
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
    """One cloud's manners, the whole of them."""

    #: As `--provider` says it, and as a person does.
    name: ClassVar[str]
    title: ClassVar[str]
    #: Seconds of warning that it gives, on paper.
    window: ClassVar[float]

    @abstractmethod
    def simulator(self) -> Simulator:
        """The metadata service of one of its machines, not started yet."""

    @abstractmethod
    def preempt(self, simulator: Simulator, window: float) -> None:
        """Put the notice that the machine goes in so many seconds."""

    @abstractmethod
    def words(self, window: float) -> str:
        """What the notice says, for a person."""

    def options(self, window: float) -> list[str]:
        """What `spotguard run` is told on a machine of this cloud, beside the provider and its endpoint."""
        return []

    def button(self, window: float) -> float | None:
        """Seconds from the notice to the SIGTERM that everything on the machine gets; None where none comes."""
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
        return f"spot/instance-action says terminate, in {window:g} s"


class _Gcp(DemoCloud):
    """`preempted` has no time in it, and is TRUE in the moment in which the operating system is told to shut down: the
    save begins while everything on the machine is asked to end."""

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
        # A VM that was made with a notice duration does not know it: it has to be said.
        return ["--window", f"{window:g}"] if window > _SHUTDOWN else []

    def button(self, window: float) -> float | None:
        return max(0.0, window - _SHUTDOWN)


class _Azure(DemoCloud):
    """The machine is one of a scale set, all of which are evicted: its list of events names the others too."""

    name, title, window = "azure", "Azure", 30.0

    def simulator(self) -> Simulator:
        from spotguard.providers.simulator.azure.service import AzureSimulator

        return AzureSimulator(others=3, enabling=3.0, capitals=True)

    def preempt(self, simulator: Simulator, window: float) -> None:
        from spotguard.providers.simulator.azure.service import AzureSimulator

        assert isinstance(simulator, AzureSimulator)
        simulator.preempt(window, of="all")

    def words(self, window: float) -> str:
        return f"scheduled events say Preempt of four machines, this one among them, in {window:g} s"


#: A later cloud is one more.
CLOUDS: Mapping[str, DemoCloud] = {cloud.name: cloud for cloud in (_Aws(), _Gcp(), _Azure())}
