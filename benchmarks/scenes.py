"""The scenarios of tests/scenarios.md that have a notice: what happens, and from which instant the notice is visible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotguard.providers.clouds.azure.imds import EVENTS_PATH
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator

from .watched import CLOUDS, Watched

#: What happens to a machine, after how long a pause. Returns the instant from which the notice is visible.
Act = Callable[[Watched, float], float]


@dataclass(frozen=True, slots=True)
class Scene:
    number: str
    provider: str
    what: str
    act: Act
    #: Milliseconds, in which it has to be told.
    figure: float | None = None
    #: Seconds from one look to the next at the key in question, where it is not the terminal one.
    interval: float | None = None
    service: Callable[[], Any] | None = None
    #: The agent need not see before it happens.
    blind: bool = False

    @property
    def row(self) -> str:
        return f"{self.number} {CLOUDS[self.provider].name}: {self.what}"


def _now(do: Callable[[Any], object]) -> Act:
    """In plain sight."""

    def act(machine: Watched, pause: float) -> float:
        threading.Event().wait(pause)
        visible = time.monotonic()
        do(machine.simulator)
        return visible

    return act


def _behind(kind: str, do: Callable[[Any], object], seconds: float = 3.0) -> Act:
    """Behind a fault that lasts so long, from the end of that."""

    def act(machine: Watched, pause: float) -> float:
        end = time.monotonic() + seconds + pause
        machine.simulator.fault(kind, seconds=seconds + pause)
        threading.Event().wait(seconds / 2)
        do(machine.simulator)
        return end

    return act


def _preempt(service: Any) -> None:
    service.preempt()


def _refused(aws: AwsSimulator) -> None:
    """The token in hand is no longer taken, in the instant of the notice."""
    aws.fault("401", count=1)
    aws.preempt()


def _enabling(machine: Watched, pause: float) -> float:
    """While the call that switches the events on is held for 4 s, from its answer."""
    azure = machine.simulator
    azure.wait_for(1, path=EVENTS_PATH, timeout=60)
    asked = next(seen.at for seen in azure.requests if seen.path == EVENTS_PATH)
    azure.preempt()
    return float(asked) + 4.0


def _with(kind: str, service: Callable[[], Any]) -> Callable[[], Any]:
    """A service that has this fault from the start on."""

    def made() -> Any:
        simulator = service()
        simulator.fault(kind)
        return simulator

    return made


def _hop_limit(machine: Watched, pause: float) -> float:
    """The agent has never had a token. The limit is raised, and the notice stands already."""
    threading.Event().wait(3.0 + pause)
    machine.simulator.preempt()
    visible = time.monotonic()
    machine.simulator.fault("hop-limit", seconds=0.0)  # the newer one, which is over
    return visible


def _power_button(machine: Watched, pause: float) -> float:
    """As ACPI's soft-off has it: the operating system stops `spotguard run` in the same instant."""
    threading.Event().wait(pause)
    visible = time.monotonic()
    machine.simulator.preempt(pid=machine.pid)
    return visible


def _calm(
    number: str, provider: str, what: str, do: Callable[[Any], object] = _preempt, **more: Any
) -> Scene:
    """Nothing is in the way: it has to be told within the figure of this cloud."""
    return Scene(number, provider, what, _now(do), **({"figure": CLOUDS[provider].figure} | more))


def _fault(number: str, provider: str, kind: str, seconds: float = 3.0) -> Scene:
    what = f"after {seconds:g} s of {kind}"
    return Scene(number, provider, what, _behind(kind, _preempt, seconds))


def _skewed(provider: str, skew: float) -> Scene:
    what = f"the cloud's clock is {abs(skew):g} s {'ahead' if skew > 0 else 'behind'}"
    return _calm("S18", provider, what, lambda service: service.preempt(skew=skew))


#: Of keys that warn of what is minutes away or more.
_EVERY_TEN = {"figure": 10_020.0, "interval": 10.0}

AWS = (
    _calm(
        "S1",
        "aws",
        "tokens live 2 s, and the one in hand is refused",
        _refused,
        service=partial(AwsSimulator, max_ttl=2),
    ),
    Scene(
        "S2",
        "aws",
        "when the hop limit is raised",
        _hop_limit,
        service=_with("hop-limit", AwsSimulator),
        blind=True,
    ),
    _calm("S3", "aws", "a notice of 120 s"),
    _calm("S3", "aws", "a notice that is 3 s late", lambda aws: aws.preempt(-3.0)),
    _calm("S4", "aws", "hibernation", lambda aws: aws.preempt(0.0, "hibernate")),
    _calm(
        "S5",
        "aws",
        "termination-time alone (every 10 s, and again after 3)",
        lambda aws: aws.termination_time("valid"),
        figure=13_020.0,
        interval=10.0,
    ),
    _calm("S6", "aws", "a rebalance recommendation (every 10 s)", lambda aws: aws.rebalance(), **_EVERY_TEN),
    *(_fault("S7", "aws", kind) for kind in ("503", "reset", "hang", "trickle")),
    _calm("S15", "aws", "only 10 s of warning", lambda aws: aws.preempt(10.0)),
    _fault("S17", "aws", "portal"),
    *(_skewed("aws", skew) for skew in (60.0, -60.0)),
)

GCP = (
    _calm("S8", "gcp", "TRUE while a GET is held"),
    # What comes between two GETs, and the next one is asked a second later.
    _calm(
        "S8",
        "gcp",
        "TRUE where no GET is held",
        figure=1020.0,
        interval=1.0,
        service=_with("held-not", GcpSimulator),
    ),
    _fault("S8", "gcp", "503"),
    _calm(
        "S9",
        "gcp",
        "an ETag that always changes",
        figure=1020.0,
        interval=1.0,
        service=_with("etag", GcpSimulator),
    ),
    Scene("S10", "gcp", "with ACPI's SIGTERM", _power_button, CLOUDS["gcp"].figure),
    _calm("S11", "gcp", "a migration (every 10 s)", lambda gcp: gcp.maintain("migrate"), **_EVERY_TEN),
    _calm("S15", "gcp", "only 10 s of warning", lambda gcp: gcp.preempt(10.0)),
    _fault("S17", "gcp", "flavor"),
)

AZURE = (
    Scene(
        "S12",
        "azure",
        "while the first call is held, from its answer",
        _enabling,
        blind=True,
        service=partial(AzureSimulator, enabling=4.0),
    ),
    *(_fault("S12", "azure", kind) for kind in ("429", "410", "500")),
    _calm(
        "S13",
        "azure",
        "an event of many machines, in capitals",
        lambda azure: azure.preempt(of="all"),
        service=partial(AzureSimulator, enabling=0.0, capitals=True),
    ),
    _calm("S14", "azure", "a Preempt of 30 s"),
    _calm("S14", "azure", "started without a warning", lambda azure: azure.fail()),
    _calm("S15", "azure", "only 10 s of warning", lambda azure: azure.preempt(10.0)),
    _fault("S17", "azure", "garbage"),
    *(_skewed("azure", skew) for skew in (60.0, -60.0)),
)

SCENES = (*AWS, *GCP, *AZURE)
