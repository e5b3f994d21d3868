"""The plan of a machine. spotguard checks it here, because nobody reads an error on the machine."""

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

#: Seconds that a save may take before systemd ends it: more than each cloud's window, and margin above a configured window.
_PATIENCE, _MARGIN = 180, 60

#: User names that `useradd` accepts, both Debian's and Red Hat's.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class MachineWish:
    """The machine as the command line describes it. None: the option is not set."""

    package: str | None = None
    index: str | None = None
    #: Requirements of other packages, in pip's form.
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
    #: Requirements for pip, one a line, with spotguard first.
    packages: str
    index: str
    #: The job's Python; "": the first usable one.
    python: str
    user: str
    #: "": the user's home.
    directory: str
    #: A shell command that the user runs once in `directory`, before the job, such as a `git clone`. "": none.
    prepare: str
    restart: str
    #: A shell command that root runs when the job has ended for good, such as `poweroff`. "": none.
    then: str
    run_id: str
    store: str
    #: Options of `run`, by name, as text.
    run: Mapping[str, str]
    #: Options of the agent, by name, as text.
    agent: Mapping[str, str]
    command: str
    #: Seconds that systemd leaves the job to end.
    patience: int
    #: An address beyond the machine and its link that the agent may poll for notices. "": none.
    allow: str


def make(
    cloud: Cloud, flags: Mapping[str, str], command: Sequence[str], wish: MachineWish, clock: Clock
) -> BootstrapPlan:
    """Return a plan that a machine can carry out.

    Args:
        cloud: the cloud of the machine.
        flags: options of `run`, by name.
        command: the command and its arguments.
        wish: the machine as the command line describes it.
        clock: the time now, so that a deadline in the past is refused.

    Raises:
        UsageError: a value is missing, is a secret, or cannot be used.
    """
    if not command or not command[0]:
        raise UsageError(
            "the command is missing: use spotguard bootstrap CLOUD [options] -- COMMAND, as in … -- torchrun train.py"
        )
    # This check comes before any other check of a value. Otherwise the error of another check could repeat a secret.
    texts = _said(flags, command, wish)
    _refuse_secrets(texts, flags.get("run-id", ""))
    refuse_no_program(command, flags.get("run-id", ""))
    refuse_unexpanded(texts, command)
    for name, reason in (
        ("store", "it outlives the machine: s3://…"),
        ("run-id", "the next machine resumes by it"),
    ):
        if not flags.get(name):
            raise UsageError(f"--{name} is missing: {reason}, so bootstrap takes no default for it")
    flags = {**flags, "provider": _provider(cloud, flags.get("provider", cloud))}
    options = machines_options.read(flags, wish.user, clock)
    _refuse_what_is_lost_on_the_way(texts)
    # The unit makes the socket's directory, so no other user can have put anything there.
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
        # A run gets notices from the machine's agent. Only that agent polls the metadata service.
        run={name: text for name, text in flags.items() if name != "metadata-endpoint"},
        agent={name: flags[name] for name in _AGENTS if name in flags}
        | _metrics_of_agent(options.metrics_port),
        command=shlex.join(command),
        patience=max(_PATIENCE, math.ceil(options.window or 0.0) + _MARGIN),
        allow=urlsplit(options.metadata_endpoint or "").hostname or "",
    )


_LAST_PORT = 65535
#: Options that the agent needs too. Each run also sends its window and its reserve to the agent.
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


def _metrics_of_agent(port: int | None) -> dict[str, str]:
    """The agent polls for all runs, so polls and health are its metrics. A port serves one of the two."""
    return {} if port is None else {"metrics-port": str(port + 1 if port < _LAST_PORT else port - 1)}


def _provider(cloud: Cloud, provider: str) -> str:
    if provider in CLOUDS and provider != cloud:
        raise UsageError(
            f"--provider {provider!r}: the machine is one of {cloud}, and gets no notices of {provider}: leave it out"
        )
    return provider


def _user(name: str) -> str:
    if not _USER.fullmatch(name) or name == "spotguard":
        raise UsageError(
            f"--user {name!r}: expected a user's name, as in ubuntu; it is made where it is missing (spotguard is the agent's own)"
        )
    return name


def _python(path: str | None) -> str:
    if path is None:
        return ""
    version = re.search(
        r"/python([0-9]+)(?:\.([0-9]+))?$", absolute("--python", path, "/opt/pytorch/bin/python")
    )
    if version and not (version[1] == "3" and 11 <= int(version[2] or 11) <= 14):
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
    """Return every text of the command line that goes into the printed text, by its place."""
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


def _refuse_what_is_lost_on_the_way(texts: Mapping[str, str]) -> None:
    """Refuse characters that user-data would lose.

    YAML accepts no control characters, and breaks lines at some characters at which a shell does not. A comment or a unit's
    setting ends with its line.
    """
    for where, text in texts.items():
        allowed = "\t\n" if where in ("the command", "--prepare", "--then") else ""
        for char in text:
            if not (char.isprintable() or char in allowed):
                raise UsageError(
                    f"{where} holds {char!r}, which does not survive in user-data: put it into a file of the job's"
                )


def _refuse_secrets(texts: Mapping[str, str], run_id: str) -> None:
    """Refuse a text that holds a secret, and never repeat it. Everybody who may describe the machine can read its user-data.

    Args:
        texts: every text of the command line, by its place.
        run_id: the run id, for the name of the file.

    Raises:
        UsageError: a text holds a secret; the message names the file for it.
    """
    for where, text in texts.items():
        for name in secrets_in(text):
            raise UsageError(
                f"{where} holds {name}: user-data is read by everything on the machine. Give the machine an identity, or put "
                f"NAME=value into {file_of(run_id)} from where secrets are kept"
            )
