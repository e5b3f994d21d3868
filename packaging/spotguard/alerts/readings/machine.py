"""All readings of this machine, in the time of one sample: its disks, its memory and processors, its GPUs, its clock."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from ...providers.clock import Clock
from .disk import disks
from .gpu import Gpus
from .host import ClockSteps, CpuThrottle, Reading, memory, pressure
from .source import ReadingSource, read_all

log = logging.getLogger("spotguard.agent")


class MachineReadings:
    """The readings of this machine: its disks, its memory and processors, its GPUs and its clock.

    Args:
        folders: the names and paths of the folders whose disks are read.
        clock: the clock.
    """

    def __init__(self, folders: Sequence[tuple[str, str]], clock: Clock) -> None:
        self._gpus: Gpus | None = None
        self._clock_steps, throttle = ClockSteps(), CpuThrottle()
        self._sources = [
            ReadingSource("disks", lambda: disks(folders)),
            ReadingSource(
                "memory and CPU", lambda: [*memory(), *pressure(), *throttle.read(clock.monotonic())]
            ),
            ReadingSource("GPUs", self._read_gpus),
        ]

    def read(self) -> Iterator[Reading]:
        """Yield what can be read within the time of a reading."""
        yield from read_all(self._sources)
        yield from self._clock_steps.read()

    @property
    def hanging(self) -> list[str]:
        """The names of the sources that have not answered in time."""
        return [source.name for source in self._sources if source.hangs]

    def _read_gpus(self) -> Iterator[Reading]:
        if self._gpus is None:  # here, because a driver in trouble hangs already as it is opened
            self._gpus = Gpus()
            if self._gpus.closed:
                log.debug("the helper of alerts does not read GPUs: %s", self._gpus.closed)
        return self._gpus.read()
