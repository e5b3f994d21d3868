"""What a machine is to become, checked here: on the machine nobody is there to read an error."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import spotguard
from spotguard.agent import config, values
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.urls import read_url

Cloud = Literal["aws", "gcp", "azure"]
CLOUDS: tuple[Cloud, ...] = ("aws", "gcp", "azure")

#: The extra of the wheel that has each store's SDK.
EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}
RESTARTS = ("no", "on-failure", "always")

#: Seconds that a save may take before systemd ends it: above each cloud's window, and above one that is said.
_PATIENCE, _MARGIN = 180, 60

#: Of `useradd`, Debian's and Red Hat's.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
#: Credentials as their makers write them: AWS's key ids, an Azure account's key, a SAS, a private key. User-data is readable by
#: everything that runs on the machine, and by whoever may describe it.
_SECRETS = (
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), "an AWS access key"),
    (re.compile(r"(?i)\baws_secret_access_key\s*="), "an AWS secret key"),
    (re.compile(r"(?i)\bAccountKey="), "the key of an Azure storage account"),
    (re.compile(r"(?i)\bsig=[0-9a-z%+/]{20,}"), "an Azure SAS"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"), "a private key"),
    (re.compile(r"https?://(?!git@)[^/\s@]+@"), "a password in a URL"),
    (re.compile(r"\b(gh[pousr]_|github_pat_|glpat-|hf_)[0-9A-Za-z_-]{16,}"), "a token"),
    # `NAME=$NAME` is a way to pass on what the environment has.
    (re.compile(r"\b[A-Z0-9_]*(SECRET|TOKEN|PASSWORD|API_?KEY)=[\"']?[^\s$\"']"), "a secret by its name"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    cloud: Cloud
    #: What pip is given: a requirement with its version, a URL, or a path on the machine.
    package: str
    index: str
    #: The job's Python; "": the first usable one.
    python: str
    user: str
    #: "": the user's home.
    directory: str
    #: Run once by the user in that folder, before the job: a `git clone`. "": nothing.
    prepare: str
    restart: str
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
    cloud: Cloud,
    flags: Mapping[str, str],
    command: Sequence[str],
    *,
    package: str = "",
    index: str = "",
    python: str = "",
    user: str = "train",
    directory: str = "",
    prepare: str = "",
    restart: str = "no",
) -> Plan:
    """A plan that a machine can carry out.

    Args:
        flags: options of `run`, by name.

    Raises:
        UsageError: something is missing or cannot be meant, or is a secret.
    """
    if not command:
        raise UsageError(
            "the command is missing: say spotguard bootstrap CLOUD [options] -- COMMAND, as in … -- torchrun train.py"
        )
    for name, wanted in (
        ("store", "it outlives the machine: s3://…"),
        ("run-id", "the next machine resumes by it"),
    ):
        if not flags.get(name):
            raise UsageError(f"--{name} is missing: {wanted}, so bootstrap takes no default for it")
    flags = {**flags, "provider": flags.get("provider", cloud)}
    options = _check(flags)
    # In a folder that the unit makes, where no other user can have been before.
    flags = {"socket": f"/run/spotguard-run-{flags['run-id']}/run.sock", **flags}
    plan = Plan(
        cloud=cloud,
        package=package or _released(flags["store"]),
        index=index,
        python=_absolute("--python", python),
        user=_user(user),
        directory=_absolute("--directory", directory),
        prepare=prepare,
        restart=restart,
        run_id=flags["run-id"],
        store=flags["store"],
        # A run asks the machine's agent, which alone asks the metadata service.
        run={name: text for name, text in flags.items() if name != "metadata-endpoint"},
        agent={name: flags[name] for name in _AGENTS if name in flags},
        command=shlex.join(command),
        patience=max(_PATIENCE, math.ceil(options.window or 0.0) + _MARGIN),
        allow=urlsplit(options.metadata_endpoint or "").hostname or "",
    )
    _refuse_what_is_lost_on_the_way(plan)
    _refuse_secrets(plan)
    return plan


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


def _check(flags: Mapping[str, str]) -> config.Options:
    """As the machine will read them; folders are the machine's own, and not looked for here."""
    if "config" in flags:
        raise UsageError("--config: the machine has a file of its own: give the options themselves")
    if "exit-code" in flags:
        raise UsageError(
            "--exit-code: by 75 the machine's unit knows that the job is to be started again: leave it out"
        )
    return config.resolve("run", flags, {}, readers={"store": read_url, "stage": values.absolute_path})


def _released(store: str) -> str:
    extra = EXTRAS.get(urlsplit(store).scheme, "")
    return f"spotguard[{extra}]=={spotguard.__version__}" if extra else f"spotguard=={spotguard.__version__}"


def _user(name: str) -> str:
    if not _USER.fullmatch(name) or name == "spotguard":
        raise UsageError(
            f"--user {name!r}: expected a user's name, as in ubuntu; it is made where it is missing (spotguard is the agent's own)"
        )
    return name


def _absolute(flag: str, path: str) -> str:
    if path and not path.startswith("/"):
        raise UsageError(
            f"{flag} {path!r}: expected a path on the machine from its root, as in /opt/pytorch/bin/python"
        )
    return path


def _said(plan: Plan) -> dict[str, str]:
    """Everything that is pasted, by where it was said."""
    return {
        "the command": plan.command,
        "--prepare": plan.prepare,
        "--package": plan.package,
        "--index": plan.index,
        "--python": plan.python,
        "--directory": plan.directory,
        **{f"--{name}": text for name, text in plan.run.items()},
    }


def _refuse_what_is_lost_on_the_way(plan: Plan) -> None:
    """YAML takes no control characters, and breaks lines at some that a shell does not; comments and units end with a line."""
    for where, text in _said(plan).items():
        allowed = "\t\n" if where in ("the command", "--prepare") else ""
        for char in text:
            if not (char.isprintable() or char in allowed):
                raise UsageError(
                    f"{where} holds {char!r}, which does not survive in user-data: put it into a file of the job's"
                )


def _refuse_secrets(plan: Plan) -> None:
    for where, text in _said(plan).items():
        for looks, name in _SECRETS:
            if looks.search(text):
                raise UsageError(
                    f"{where} holds {name}: user-data is read by everything on the machine. Give the machine an identity, or put "
                    f"NAME=value into /etc/spotguard/runs/{plan.run_id}.env from where secrets are kept"
                )
