"""What a machine is to become, checked here: on the machine nobody is there to read an error."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from spotguard.providers.clock import Clock
from spotguard.providers.errors import UsageError
from spotguard.providers.redaction import secrets_in

from . import options as machines_options
from . import requirement
from .options import absolute
from .program import file_of, refuse_no_program
from .variables import refuse_unexpanded

Cloud = Literal["aws", "gcp", "azure"]
CLOUDS: tuple[Cloud, ...] = ("aws", "gcp", "azure")

RESTARTS = ("no", "on-failure", "always")

#: Seconds that a save may take before systemd ends it: above each cloud's window, and above one that is said.
_PATIENCE, _MARGIN = 180, 60

#: Of `useradd`, Debian's and Red Hat's.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class MachineWish:
    """How the machine is to be, as it was said. None: it was not."""

    package: str | None = None
    index: str | None = None
    #: What else is installed, each as pip reads it.
    others: Sequence[str] = ()
    python: str | None = None
    user: str = "train"
    directory: str | None = None
    prepare: str | None = None
    restart: str = "no"
    then: str | None = None


@dataclass(frozen=True, slots=True)
class BootstrapPlan:
    cloud: Cloud
    #: What pip is given, a requirement a line: spotguard first.
    packages: str
    index: str
    #: The job's Python; "": the first usable one.
    python: str
    user: str
    #: "": the user's home.
    directory: str
    #: Run once by the user in that folder, before the job: a `git clone`. "": nothing.
    prepare: str
    restart: str
    #: Run by root when the job is over for good: `poweroff`. "": nothing.
    then: str
    run_id: str
    store: str
    #: Of `run` and of the agent, by option name, as they were written.
    run: Mapping[str, str]
    agent: Mapping[str, str]
    command: str
    #: Seconds that systemd gives the job to end.
    patience: int
    #: An address beyond this machine and its link at which the agent looks for notices.
    allow: str


def make(
    cloud: Cloud, flags: Mapping[str, str], command: Sequence[str], wish: MachineWish, clock: Clock
) -> BootstrapPlan:
    """A plan that a machine can carry out.

    Args:
        flags: options of `run`, by name.
        clock: no machine is made for a time that is past.

    Raises:
        UsageError: something is missing or cannot be meant, or is a secret.
    """
    if not command or not command[0]:
        raise UsageError(
            "the command is missing: say spotguard bootstrap CLOUD [options] -- COMMAND, as in … -- torchrun train.py"
        )
    # Before anything else looks at a value: whatever else is wrong with it, a secret is not repeated.
    said = _said(flags, command, wish)
    _refuse_secrets(said, flags.get("run-id", ""))
    refuse_no_program(command, flags.get("run-id", ""))
    refuse_unexpanded(said, command)
    for name, wanted in (
        ("store", "it outlives the machine: s3://…"),
        ("run-id", "the next machine resumes by it"),
    ):
        if not flags.get(name):
            raise UsageError(f"--{name} is missing: {wanted}, so bootstrap takes no default for it")
    flags = {**flags, "provider": _provider(cloud, flags.get("provider", cloud))}
    options = machines_options.read(flags, wish.user, clock)
    _refuse_what_is_lost_on_the_way(said)
    # In a folder that the unit makes, where no other user can have been before.
    flags = {"socket": f"/run/spotguard-run-{flags['run-id']}/run.sock", **flags}
    index = "" if wish.index is None else requirement.index(wish.index)
    return BootstrapPlan(
        cloud=cloud,
        packages="\n".join(
            [
                requirement.package(
                    wish.package, index, flags["store"], metrics=options.metrics_port is not None
                ),
                *requirement.others(list(wish.others)),
            ]
        ),
        index=index,
        python=_python(wish.python),
        user=_user(wish.user),
        directory="" if wish.directory is None else absolute("--directory", wish.directory, "/srv/job"),
        prepare=_some("--prepare", wish.prepare),
        restart=wish.restart,
        then=_then(wish),
        run_id=flags["run-id"],
        store=flags["store"],
        # A run asks the machine's agent, which alone asks the metadata service.
        run={name: text for name, text in flags.items() if name != "metadata-endpoint"},
        agent={name: flags[name] for name in _AGENTS if name in flags},
        command=shlex.join(command),
        patience=max(_PATIENCE, math.ceil(options.window or 0.0) + _MARGIN),
        allow=urlsplit(options.metadata_endpoint or "").hostname or "",
    )


#: What the agent has to know too. (A window or a reserve it hears of each run.)
_AGENTS = (
    "provider",
    "metadata-endpoint",
    "vm-name",
    "acknowledge",
    "json-log",
    "log-level",
    "window",
    "reserve",
)


def _provider(cloud: Cloud, said: str) -> str:
    if said in CLOUDS and said != cloud:
        raise UsageError(
            f"--provider {said!r}: the machine is one of {cloud}, and hears nothing of {said}: leave it out"
        )
    return said


def _user(name: str) -> str:
    if not _USER.fullmatch(name) or name == "spotguard":
        raise UsageError(
            f"--user {name!r}: expected a user's name, as in ubuntu; it is made where it is missing (spotguard is the agent's own)"
        )
    return name


def _python(path: str | None) -> str:
    if path is None:
        return ""
    found = re.search(
        r"/python([0-9]+)(?:\.([0-9]+))?$", absolute("--python", path, "/opt/pytorch/bin/python")
    )
    if found and not (found[1] == "3" and 11 <= int(found[2] or 11) <= 14):
        raise UsageError(
            f"--python {path!r}: spotguard needs Python 3.11 to 3.14: name another of the image's, or leave it out"
        )
    return path


def _some(flag: str, command: str | None) -> str:
    if command is not None and not command.strip():
        raise UsageError(
            f"{flag} {command!r}: expected a command for the shell; leave it out where there is none"
        )
    return command or ""


def _then(wish: MachineWish) -> str:
    if wish.then is not None and wish.restart == "always":
        raise UsageError(
            "--then never comes with --restart always: with on-failure, or no, the job has an end"
        )
    return _some("--then", wish.then)


def _said(flags: Mapping[str, str], command: Sequence[str], wish: MachineWish) -> dict[str, str]:
    """Everything that is pasted, by where it was said."""
    own = {
        "the command": " ".join(command),
        "--prepare": wish.prepare,
        "--then": wish.then,
        "--package": wish.package,
        "--with": " ".join(wish.others),
        "--index": wish.index,
        "--python": wish.python,
        "--directory": wish.directory,
    }
    return {name: text for name, text in own.items() if text} | {
        f"--{name}": text for name, text in flags.items()
    }


def _refuse_what_is_lost_on_the_way(said: Mapping[str, str]) -> None:
    """YAML takes no control characters, and breaks lines at some that a shell does not; comments and units end with a line."""
    for where, text in said.items():
        allowed = "\t\n" if where in ("the command", "--prepare", "--then") else ""
        for char in text:
            if not (char.isprintable() or char in allowed):
                raise UsageError(
                    f"{where} holds {char!r}, which does not survive in user-data: put it into a file of the job's"
                )


def _refuse_secrets(said: Mapping[str, str], run_id: str) -> None:
    """Refuse what is no plain word, and never repeat it: user-data is read by whoever may describe the machine, too.

    Args:
        said: everything that was written, by where.

    Raises:
        UsageError: with the file that takes it.
    """
    for where, text in said.items():
        for name in secrets_in(text):
            raise UsageError(
                f"{where} holds {name}: user-data is read by everything on the machine. Give the machine an identity, or put "
                f"NAME=value into {file_of(run_id)} from where secrets are kept"
            )
