"""The table of settings: each defines a flag, an environment variable and a file key of `run` and `agent`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from . import parsers
from .options import PREFIX
from .parsers import DEADLINE_EXAMPLE

RUN: tuple[str, ...] = ("run",)

BOTH: tuple[str, ...] = ("run", "agent")


class OptionGroup(StrEnum):
    """The groups of options in `--help` and on the page of commands."""

    NOTICE = "Notice"
    CHECKPOINTS = "Checkpoints"
    RESTART = "Restart"
    ALERTS = "Alerts"
    OUTPUT = "Socket and output"


@dataclass(frozen=True, slots=True)
class Setting:
    """One option. `read` parses a given text into the value, or raises `UsageError`."""

    name: str
    read: Callable[[str, str], Any]
    default: object
    metavar: str
    #: Verb first, at most 70 characters, with the default in brackets.
    help: str
    group: OptionGroup
    commands: tuple[str, ...] = BOTH
    #: The help text of `agent --help`, if the service's default differs; else "".
    agent_help: str = ""
    #: The flag may be given several times, the file may have a list, and commas separate the values of one text.
    several: bool = False

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
        "poll this cloud: aws, azure, gcp, none, or auto by the firmware [auto]",
        OptionGroup.NOTICE,
    ),
    Setting(
        "metadata-endpoint",
        parsers.endpoint,
        None,
        "URL",
        "poll this metadata service, such as spotguard simulate's",
        OptionGroup.NOTICE,
    ),
    Setting(
        "vm-name", parsers.vm_name, None, "NAME", "set Azure's name for this machine", OptionGroup.NOTICE
    ),
    Setting(
        "acknowledge",
        parsers.yes_or_no,
        False,
        "",
        "approve Azure's event once everything is committed",
        OptionGroup.NOTICE,
    ),
    Setting(
        "window",
        parsers.seconds,
        None,
        "SECONDS",
        "assume this many seconds of warning [the notice's; GCP 30, SIGTERM 25]",
        OptionGroup.NOTICE,
        agent_help="assume this many seconds of warning [the notice's; GCP 30]",
    ),
    Setting(
        "reserve",
        parsers.seconds,
        None,
        "SECONDS",
        "seconds kept for an orderly end [a tenth of the window, at least 3]",
        OptionGroup.NOTICE,
    ),
    Setting(
        "deadline",
        parsers.deadline,
        None,
        "TIME",
        f"end by then: {DEADLINE_EXAMPLE}, Unix seconds, +3600 or 2h",
        OptionGroup.NOTICE,
    ),
    Setting(
        "notice-file",
        parsers.absolute_path,
        None,
        "PATH",
        "treat this file, or each line of this FIFO, as a notice",
        OptionGroup.NOTICE,
    ),
    Setting(
        "on-notice",
        parsers.shell_command,
        None,
        "COMMAND",
        "run this in a shell at each terminal notice",
        OptionGroup.NOTICE,
    ),
    Setting(
        "signal",
        parsers.signal_number,
        15,
        "NAME",
        "signal for a command that registers nothing; none: no signal [TERM]",
        OptionGroup.NOTICE,
        RUN,
    ),
    Setting(
        "store",
        parsers.store,  # the front door, which may import the stores, checks the URL further
        None,
        "URL",
        "save to a path, s3://, gs:// or az:// [./spotguard-checkpoints]",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "run-id",
        parsers.run_id,
        None,
        "NAME",
        "resume under this name [by script, arguments and directory]",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "every",
        parsers.interval,
        "auto",
        "SECONDS",
        "make background checkpoints, such as 5m, or off [auto]",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "keep",
        parsers.keep,
        "3",
        "K[+N]",
        "keep K checkpoints, and one of every N steps [3]",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "stage",
        parsers.folder,
        None,
        "DIR",
        "write background checkpoints to this local disk first",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "lossy-moments",
        parsers.yes_or_no,
        False,
        "",
        "round moments to bfloat16 before leaving them out",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "extras-worth",
        parsers.at_least(0, 999_999_999),
        100,
        "STEPS",
        "steps to give up for a dead rank's extras [100]",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "attach",
        parsers.yes_or_no,
        False,
        "",
        "guard a Trainer of transformers or Lightning in an unchanged script",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "begin-anew",
        parsers.yes_or_no,
        False,
        "",
        "begin at step 0, once, if every checkpoint is damaged",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "stall-first",
        parsers.stall,
        1800.0,
        "SECONDS",
        "save if a first step stands still for this long; or off [30m]",
        OptionGroup.CHECKPOINTS,
    ),
    Setting(
        "verify-every",
        parsers.hours,
        "off",
        "HOURS",
        "read the newest checkpoint again this often, such as 6 [off]",
        OptionGroup.CHECKPOINTS,
        RUN,
    ),
    Setting(
        "max-restarts",
        parsers.at_least(0),
        0,
        "N",
        "restart a crashed command this often; preemptions are free [0]",
        OptionGroup.RESTART,
        RUN,
    ),
    Setting(
        "recover",
        parsers.recover,
        None,
        "RULES",
        "after CLASS restart, leave, stop or go back, as in stall=restart",
        OptionGroup.RESTART,
        RUN,
    ),
    Setting(
        "exclude-file",
        parsers.appendable_path,
        None,
        "FILE",
        "append the machine that failed to FILE at the action leave",
        OptionGroup.RESTART,
        RUN,
    ),
    Setting(
        "outlive",
        parsers.yes_or_no,
        False,
        "",
        "restart the command if the machine outlives its deadline by 60 s",
        OptionGroup.RESTART,
        RUN,
    ),
    Setting(
        "exit-code",
        # Every launcher takes 0 for finished work.
        parsers.at_least(1, 255, "; 0 would mean that the work is done"),
        75,
        "N",
        "exit with this code after a preemption [75, EX_TEMPFAIL]",
        OptionGroup.RESTART,
        RUN,
    ),
    Setting(
        "webhook",
        parsers.webhooks,
        (),
        "URL",
        "post incidents to this Alertmanager, Slack or webhook; repeatable",
        OptionGroup.ALERTS,
        several=True,
    ),
    Setting(
        "on-failure",
        parsers.shell_command,
        None,
        "COMMAND",
        "run this in a shell when the command fails",
        OptionGroup.ALERTS,
    ),
    Setting(
        "socket",
        parsers.socket_path,
        None,
        "PATH",
        "listen here for training processes [by the run id]",
        OptionGroup.OUTPUT,
        agent_help="listen here for runs [/run/spotguard/agent.sock]",
    ),
    Setting(
        "metrics-port",
        parsers.at_least(1, 65535, ", as in 9464"),
        None,
        "N",
        "serve Prometheus metrics on 127.0.0.1:N",
        OptionGroup.OUTPUT,
    ),
    Setting("json-log", parsers.yes_or_no, False, "", "log one JSON object a line", OptionGroup.OUTPUT),
    Setting(
        "log-level",
        parsers.one_of("debug", "info", "warning", "error"),
        "info",
        "LEVEL",
        "log from this level on: debug, info, warning, error [info]",
        OptionGroup.OUTPUT,
    ),
)


def settings_of(command: str) -> tuple[Setting, ...]:
    return tuple(setting for setting in SETTINGS if command in setting.commands)
