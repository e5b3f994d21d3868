"""The options of `run` and `agent`: one table that defines flags, environment variables and file keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import parsers
from .parsers import DEADLINE_EXAMPLE, Deadline

#: The variable with the run id and the socket of the agent that made this environment. A colon separates them; no run id
#: contains one.
PARENT = "SPOTGUARD_PARENT"

#: The variables that a command of `--on-notice` finds in addition (`notice_hook`).
NOTICE_FACTS = tuple(
    f"SPOTGUARD_NOTICE_{name}" for name in ("ID", "KIND", "SEVERITY", "SOURCE", "SECONDS_LEFT", "DETAIL")
)

PREFIX = "SPOTGUARD_"

#: The variable that names the TOML file.
CONFIG_VARIABLE = "SPOTGUARD_CONFIG"

RUN: tuple[str, ...] = ("run",)

BOTH: tuple[str, ...] = ("run", "agent")


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
    begin_anew: bool
    #: None: the default path for the run id, or for the service.
    socket: str | None
    #: The signal for a command without sessions; None: no signal.
    signal: int | None
    max_restarts: int
    outlive: bool
    exit_code: int
    #: Port of the metrics endpoint on loopback; None: no endpoint.
    metrics_port: int | None
    json_log: bool
    log_level: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One option. `read` parses a given text into the value, or raises `UsageError`."""

    name: str
    read: Callable[[str, str], Any]
    default: object
    metavar: str
    help: str
    commands: tuple[str, ...] = BOTH
    #: The help text of `agent --help`, if the service's default differs; else "".
    agent_help: str = ""

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.field.upper()}"

    def help_of(self, command: str) -> str:
        return self.agent_help or self.help if command == "agent" else self.help

    @property
    def is_switch(self) -> bool:
        return self.read is parsers.yes_or_no


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "provider",
        parsers.provider,
        "auto",
        "NAME",
        "whose notices to watch: aws, azure, gcp, none, or auto (the default), which goes by DMI alone",
    ),
    Setting(
        "metadata-endpoint",
        parsers.endpoint,
        None,
        "URL",
        "the metadata service, where it is not the cloud's own: `spotguard simulate` prints one",
    ),
    Setting(
        "vm-name",
        parsers.vm_name,
        None,
        "NAME",
        "Azure: what its events call this machine, where the metadata service does not tell",
    ),
    Setting(
        "acknowledge",
        parsers.yes_or_no,
        False,
        "",
        "Azure: let it begin as soon as everything is committed, where it is about this machine alone",
    ),
    Setting(
        "store",
        parsers.store,  # the front door, which may import the stores, checks the URL further
        None,
        "URL",
        "where checkpoints go: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path (default: the folder spotguard-checkpoints, here)",
        RUN,
    ),
    Setting(
        "run-id",
        parsers.run_id,
        None,
        "NAME",
        "the name to resume under (default: from the script, its arguments and this folder)",
        RUN,
    ),
    Setting(
        "window",
        parsers.seconds,
        None,
        "SECONDS",
        "the warning to count on (default: what the notice says; 30 for GCP's, 25 for a SIGTERM)",
        agent_help="the warning to count on (default: what the notice says)",
    ),
    Setting(
        "reserve",
        parsers.seconds,
        None,
        "SECONDS",
        "what is kept back to end in order (default: the larger of 3 and a tenth of the window)",
    ),
    Setting(
        "deadline",
        parsers.deadline,
        None,
        "TIME",
        f"when this machine, or this job, has to end: {DEADLINE_EXAMPLE}, Unix seconds, or +3600 or 2h from now",
    ),
    Setting(
        "notice-file",
        parsers.absolute_path,
        None,
        "PATH",
        "a file that is a notice for as long as it is there, or a FIFO of which each line is one",
    ),
    Setting(
        "on-notice",
        parsers.shell_command,
        None,
        "COMMAND",
        "run by the shell at each notice that ends this machine, with its facts in SPOTGUARD_NOTICE_KIND and others",
    ),
    Setting(
        "every",
        parsers.interval,
        "auto",
        "SECONDS",
        "background checkpoints: seconds, auto (the default) or off",
        RUN,
    ),
    Setting(
        "lossy-moments",
        parsers.yes_or_no,
        False,
        "",
        "where all does not fit into the window, round the optimizer's moments to bfloat16 before leaving them out",
        RUN,
    ),
    Setting(
        "extras-worth",
        parsers.at_least(0, 999_999_999),
        100,
        "STEPS",
        "steps that the extras of a rank that died are worth at a restore (default: 100)",
        RUN,
    ),
    Setting(
        "begin-anew", parsers.yes_or_no, False, "", "if every checkpoint is damaged, begin at 0, once", RUN
    ),
    Setting(
        "keep",
        parsers.keep,
        "3",
        "K[+N]",
        "how many committed checkpoints to keep, and one of every N steps (default: 3)",
        RUN,
    ),
    Setting(
        "stage",
        parsers.folder,
        None,
        "DIR",
        "a folder on this machine's own disk: background checkpoints are written there first, and a restart here restores from it",
        RUN,
    ),
    Setting(
        "socket",
        parsers.socket_path,
        None,
        "PATH",
        "where training processes find us (default: by the run id, in $XDG_RUNTIME_DIR/spotguard)",
        agent_help="where runs and training processes find us (default: /run/spotguard/agent.sock)",
    ),
    Setting(
        "signal",
        parsers.signal_number,
        15,
        "NAME",
        "what a command that registered nothing is sent at a notice, or none (default: TERM)",
        RUN,
    ),
    Setting(
        "max-restarts",
        parsers.at_least(0),
        0,
        "N",
        "start a crashed command again, this often (default: 0; a preemption never counts)",
        RUN,
    ),
    Setting(
        "outlive",
        parsers.yes_or_no,
        False,
        "",
        "start the command again when the machine is still there 60 s after its deadline",
        RUN,
    ),
    Setting(
        "exit-code",
        # Every launcher takes 0 for finished work.
        parsers.at_least(1, 255, "; 0 would say that the work is done"),
        75,
        "N",
        "how `run` exits after a preemption (default: 75, EX_TEMPFAIL: run me again)",
        RUN,
    ),
    Setting(
        "metrics-port",
        parsers.at_least(1, 65535, ", as in 9464"),
        None,
        "N",
        "where Prometheus reads how we are: http://127.0.0.1:N/metrics (default: nowhere)",
    ),
    Setting("json-log", parsers.yes_or_no, False, "", "log one JSON object a line"),
    Setting(
        "log-level",
        parsers.one_of("debug", "info", "warning", "error"),
        "info",
        "LEVEL",
        "debug, info, warning or error (default: info)",
    ),
)


def settings_of(command: str) -> tuple[Setting, ...]:
    return tuple(setting for setting in SETTINGS if command in setting.commands)
