"""The checked options of a `run` or an `agent`, and the variables of spotguard that are no options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..core.state import RecoveryRule
from .parsers import Deadline

#: The variable with the run id and the socket of the agent that made this environment. A colon separates them; no run id
#: contains one.
PARENT = "SPOTGUARD_PARENT"

#: The variables that a command of `--on-notice` finds in addition (`notice_hook`).
NOTICE_FACTS = tuple(
    f"SPOTGUARD_NOTICE_{name}" for name in ("ID", "KIND", "SEVERITY", "SOURCE", "SECONDS_LEFT", "DETAIL")
)

#: The variables that a command of `--on-failure` finds in addition.
FAILURE_FACTS = tuple(f"SPOTGUARD_FAILURE_{name}" for name in ("CLASS", "STEP", "RUN_ID"))

#: The variable that gives a command that starts again the class of the failure before, so that its script may avoid another one.
LAST_FAILURE = "SPOTGUARD_LAST_FAILURE"

#: The variable that gives it the number of loader workers to use: 0 behind the death of one. The user may have set it before.
LOADER_WORKERS = "SPOTGUARD_LOADER_WORKERS"

PREFIX = "SPOTGUARD_"

#: The variable that names the TOML file.
CONFIG_VARIABLE = "SPOTGUARD_CONFIG"


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of a `run` or an `agent`."""

    #: "auto", "aws", "azure", "gcp" or "none".
    provider: str
    metadata_endpoint: str | None
    #: Azure's name for this machine, if its metadata service does not tell the name.
    vm_name: str | None
    acknowledge: bool
    store: str
    #: Whether the user chose the store. The default dies with the machine, so spotguard warns about it on a cloud.
    store_given: bool
    run_id: str
    #: Seconds of warning that override the cloud's own number; None: use the cloud's.
    window: float | None
    #: Seconds; None: in proportion to the window.
    reserve: float | None
    deadline: Deadline | None
    notice_file: str | None
    #: A command line for the shell.
    on_notice: str | None
    every: float | Literal["auto", "off"]
    keep: str
    stage: str | None
    lossy_moments: bool
    #: Steps of training that a dead rank's extras are worth at a restore.
    extras_worth: int
    #: Attach the adapters of frameworks to a script without a line of spotguard.
    attach: bool
    begin_anew: bool
    #: Seconds without progress that are a stall in a phase of which little is known.
    stall_first: float | Literal["off"]
    #: Seconds between two verifications of the newest checkpoint.
    verify_every: float | Literal["off"]
    #: None: the default path for the run id, or for the service.
    socket: str | None
    #: The signal for a command without sessions; None: no signal.
    signal: int | None
    max_restarts: int
    #: What follows a failure, by its class; None: `max_restarts` alone decides.
    recover: Mapping[str, RecoveryRule] | None
    #: The file for the names of machines that `leave` leaves.
    exclude_file: str | None
    outlive: bool
    exit_code: int
    #: The receivers of incidents, each a URL, or its kind, a colon and a URL.
    webhook: tuple[str, ...]
    #: A command line for the shell.
    on_failure: str | None
    #: Port of the metrics endpoint on loopback; None: no endpoint.
    metrics_port: int | None
    json_log: bool
    log_level: str
