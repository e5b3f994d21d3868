"""An accelerator for numbers that the script gives: it computes as far as the test lets it."""

from __future__ import annotations

import torch


class Device:
    """An accelerator whose kernels run when the test says so. A query is an answer at once; a wait is an error."""

    def __init__(self) -> None:
        self.reached = 0
        self.events: list[Event] = []

    def record(self, device: torch.device, held: object) -> Event:
        event = held if isinstance(held, Event) else Event(self)
        event.number = max((each.number for each in self.events), default=0) + 1
        if event not in self.events:
            self.events.append(event)
        return event


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.number = 0

    def query(self) -> bool:
        return self.number <= self.device.reached
