"""A machine for the doctor to look at: its options as somebody would say them, its firmware, and its own sockets."""

from __future__ import annotations

import os
from pathlib import Path

from spotguard.agent.config.options import Options
from spotguard.agent.config.resolve import resolve
from spotguard.doctor.rate_measurement import MeasureLimits
from spotguard.doctor.run import Patient
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.stores.url import read_url

#: For who does not ask how fast it is.
A_MOMENT = MeasureLimits(0.05, 0.0, most_on_disk=8 * 2**20)


def options(**said: str) -> Options:
    """As `run` resolves them; the store is a folder that nobody has."""
    flags = {name.replace("_", "-"): value for name, value in said.items()}
    return resolve(
        "run", flags, {}, defaults={"run-id": "", "store": "file:///nowhere"}, readers={"store": read_url}
    )


def patient(folder: Path, clock: Clock | None = None, **said: str) -> Patient:
    """One whose firmware names no cloud, unless `folder` has other words, and with no agent of its own. Its rate is measured
    for a moment only."""
    said.setdefault("store", (folder / "store").as_uri())
    made = options(**said)
    runtime = folder / "run"
    runtime.mkdir(exist_ok=True)
    return Patient(
        made,
        made.run_id,
        clock or SystemClock(),
        {"XDG_RUNTIME_DIR": str(runtime)},
        os.geteuid(),
        root=folder,
        service=folder / "service" / "agent.sock",
        pace=A_MOMENT,
    )
