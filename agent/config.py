"""The options of `run` and `agent`: one table, from which flags, environment variables and file keys all come.

A flag beats the environment, the environment beats the file. What is unknown is refused, and a value that cannot
be used is refused together with the place it came from: an option that is silently not what somebody meant shows
on the day of the notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..providers.errors import UsageError
from . import values
from .deadline import EXAMPLE, Deadline
from .deadline import read as read_deadline
from .exported import NOTICE_FACTS, PARENT, without_parent

_PREFIX = "SPOTGUARD_"
#: Where the TOML file is named.
CONFIG_VARIABLE = "SPOTGUARD_CONFIG"
#: Variables of ours that are no options: of the command line, of a run around us, of the demo's machines.
_OTHERS = (
    CONFIG_VARIABLE,
    "SPOTGUARD_DEBUG",
    PARENT,
    "SPOTGUARD_DEMO_MACHINE",
    "SPOTGUARD_PROVE",
    *NOTICE_FACTS,
)

RUN: tuple[str, ...] = ("run",)
BOTH: tuple[str, ...] = ("run", "agent")


@dataclass(frozen=True, slots=True)
class Options:
    """What a `run` or an `agent` was asked for, checked."""

    #: "auto", "aws", "azure", "gcp" or "none".
    provider: str
    metadata_endpoint: str | None
    #: What Azure calls this machine, where its service cannot be asked.
    vm_name: str | None
    acknowledge: bool
    store: str
    #: Whether somebody chose the store: the default dies with the machine, which must be said on a cloud.
    store_given: bool
    run_id: str
    #: Seconds of warning, where the cloud's own word is not to be taken.
    window: float | None
    reserve: float | None
    deadline: Deadline | None
    notice_file: str | None
    #: For the shell.
    on_notice: str | None
    every: float | Literal["auto", "off"]
    keep: str
    stage: str | None
    lossy_moments: bool
    #: In steps of training.
    extras_worth: int
    begin_anew: bool
    #: None: the default of the run id, or of the service.
    socket: str | None
    #: For a command of which nobody registered.
    signal: int | None
    max_restarts: int
    outlive: bool
    exit_code: int
    #: Of the endpoint on loopback; None: there is none.
    metrics_port: int | None
    json_log: bool
    log_level: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One option. `read` makes the value, or refuses; it never sees what was not given."""

    name: str
    read: Callable[[str, str], Any]
    default: object
    metavar: str
    help: str
    commands: tuple[str, ...] = BOTH
    #: What `agent --help` says instead, where the service's default is another.
    agent_help: str = ""

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return f"{_PREFIX}{self.field.upper()}"

    def help_of(self, command: str) -> str:
        return self.agent_help or self.help if command == "agent" else self.help

    @property
    def is_switch(self) -> bool:
        return self.read is values.yes_or_no


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "provider",
        values.provider,
        "auto",
        "NAME",
        "whose notices to watch: aws, azure, gcp, none, or auto (the default), which goes by DMI alone",
    ),
    Setting(
        "metadata-endpoint",
        values.endpoint,
        None,
        "URL",
        "the metadata service, where it is not the cloud's own: `spotguard simulate` prints one",
    ),
    Setting(
        "vm-name",
        values.vm_name,
        None,
        "NAME",
        "Azure: what its events call this machine, where the metadata service does not tell",
    ),
    Setting(
        "acknowledge",
        values.yes_or_no,
        False,
        "",
        "Azure: let it begin as soon as everything is committed, where it is about this machine alone",
    ),
    Setting(
        "store",
        values.store,  # the front door, which may open the stores, reads it more closely
        None,
        "URL",
        "where checkpoints go: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path (default: the folder spotguard-checkpoints, here)",
        RUN,
    ),
    Setting(
        "run-id",
        values.run_id,
        None,
        "NAME",
        "the name to resume under (default: from the script, its arguments and this folder)",
        RUN,
    ),
    Setting(
        "window",
        values.seconds,
        None,
        "SECONDS",
        "the warning to count on (default: what the notice says; 30 for GCP's, 25 for a SIGTERM)",
        agent_help="the warning to count on (default: what the notice says)",
    ),
    Setting(
        "reserve",
        values.seconds,
        None,
        "SECONDS",
        "what is kept back to end in order (default: the larger of 3 and a tenth of the window)",
    ),
    Setting(
        "deadline",
        read_deadline,
        None,
        "TIME",
        f"when this machine, or this job, has to end: {EXAMPLE}, Unix seconds, or +3600 or 2h from now",
    ),
    Setting(
        "notice-file",
        values.absolute_path,
        None,
        "PATH",
        "a file that is a notice for as long as it is there, or a FIFO of which each line is one",
    ),
    Setting(
        "on-notice",
        values.shell_command,
        None,
        "COMMAND",
        "run by the shell at each notice that ends this machine, with its facts in SPOTGUARD_NOTICE_KIND and others",
    ),
    Setting(
        "every",
        values.interval,
        "auto",
        "SECONDS",
        "background checkpoints: seconds, auto (the default) or off",
        RUN,
    ),
    Setting(
        "lossy-moments",
        values.yes_or_no,
        False,
        "",
        "where all does not fit into the window, round the optimizer's moments to bfloat16 before leaving them out",
        RUN,
    ),
    Setting(
        "extras-worth",
        values.at_least(0, 999_999_999),
        100,
        "STEPS",
        "steps that the extras of a rank that died are worth at a restore (default: 100)",
        RUN,
    ),
    Setting(
        "begin-anew", values.yes_or_no, False, "", "if every checkpoint is damaged, begin at 0, once", RUN
    ),
    Setting(
        "keep",
        values.keep,
        "3",
        "K[+N]",
        "how many committed checkpoints to keep, and one of every N steps (default: 3)",
        RUN,
    ),
    Setting(
        "stage",
        values.folder,
        None,
        "DIR",
        "a folder on this machine's own disk: background checkpoints are written there first, and a restart here restores from it",
        RUN,
    ),
    Setting(
        "socket",
        values.socket_path,
        None,
        "PATH",
        "where training processes find us (default: by the run id, in $XDG_RUNTIME_DIR/spotguard)",
        agent_help="where runs and training processes find us (default: /run/spotguard/agent.sock)",
    ),
    Setting(
        "signal",
        values.signal_number,
        15,
        "NAME",
        "what a command that registered nothing is sent at a notice, or none (default: TERM)",
        RUN,
    ),
    Setting(
        "max-restarts",
        values.at_least(0),
        0,
        "N",
        "start a crashed command again, this often (default: 0; a preemption never counts)",
        RUN,
    ),
    Setting(
        "outlive",
        values.yes_or_no,
        False,
        "",
        "start the command again when the machine is still there 60 s after its deadline",
        RUN,
    ),
    Setting(
        "exit-code",
        # 0 would tell every launcher that the work is done.
        values.at_least(1, 255, "; 0 would say that the work is done"),
        75,
        "N",
        "how `run` exits after a preemption (default: 75, EX_TEMPFAIL: run me again)",
        RUN,
    ),
    Setting(
        "metrics-port",
        values.at_least(1, 65535, ", as in 9464"),
        None,
        "N",
        "where Prometheus reads how we are: http://127.0.0.1:N/metrics (default: nowhere)",
    ),
    Setting("json-log", values.yes_or_no, False, "", "log one JSON object a line"),
    Setting(
        "log-level",
        values.one_of("debug", "info", "warning", "error"),
        "info",
        "LEVEL",
        "debug, info, warning or error (default: info)",
    ),
)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody wrote it, and where."""

    origin: str
    text: str


def settings_of(command: str) -> tuple[Setting, ...]:
    return tuple(setting for setting in SETTINGS if command in setting.commands)


def resolve(
    command: str,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    *,
    defaults: Mapping[str, object] | None = None,
    readers: Mapping[str, Callable[[str, str], Any]] | None = None,
) -> Options:
    """The options of `command`, from the three places and the defaults.

    Args:
        command: "run" or "agent".
        env: the environment, SPOTGUARD_CONFIG included.
        flags: what the command line said, by option name; "config" names the file.
        defaults: of options whose default depends on the command and the folder.
        readers: closer looks at options than this room can take, by option name.

    Raises:
        UsageError: anything that cannot be used, with its origin.
    """
    env = without_parent(env)
    given = _from_file(_file_name(flags, env))
    for setting in SETTINGS:
        if text := env.get(setting.variable, ""):  # set but empty is not set, as with LANG and its kind
            given[setting.name] = Given(setting.variable, text)
        if setting.name in flags:
            given[setting.name] = Given(setting.flag, flags[setting.name])
    found: dict[str, Any] = {"store_given": "store" in given}
    for setting in SETTINGS:
        found[setting.field] = (defaults or {}).get(setting.name, setting.default)
        if command in setting.commands and (value := given.get(setting.name)) is not None:
            read = (readers or {}).get(setting.name, setting.read)
            found[setting.field] = read(value.origin, value.text)
    for field in ("store", "run_id"):
        found[field] = found[field] or ""
    return Options(**found)


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like an option and is none. No refusal: it may be another program's."""
    known = [*(setting.variable for setting in SETTINGS), *_OTHERS]
    strangers = sorted(name for name in env if name.startswith(_PREFIX) and name not in known)
    return [f"{name}: {_variable_near(name, known) or 'see spotguard run --help'}" for name in strangers]


def _variable_near(name: str, known: list[str]) -> str:
    """Compared without what all of them begin with, or each would be near to each."""
    words = [one.removeprefix(_PREFIX) for one in known]
    return did_you_mean(name.removeprefix(_PREFIX), words, prefix=_PREFIX)


def _file_name(flags: Mapping[str, str], env: Mapping[str, str]) -> Given | None:
    if "config" in flags:
        return Given("--config", flags["config"])
    return Given(CONFIG_VARIABLE, name) if (name := env.get(CONFIG_VARIABLE, "")) else None


def _from_file(name: Given | None) -> dict[str, Given]:
    if name is None:
        return {}
    import tomllib  # a megabyte, for those who have a file

    try:
        with open(name.text, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"{name.origin} {name.text!r}: expected a file to read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{name.origin} {name.text!r}: expected TOML: {error}") from error
    given: dict[str, Given] = {}
    for key, value in content.items():
        setting = _setting(name.text, key)
        if setting.name in given:
            both = f"{setting.name} and {setting.field}"
            raise UsageError(f"{name.text}: {key} is given twice: keep one of {both}")
        given[setting.name] = Given(f"{name.text}: {key}", values.toml_text(f"{name.text}: {key}", value))
    return given


def _setting(file: str, key: str) -> Setting:
    for setting in SETTINGS:
        if key in (setting.name, setting.field):
            return setting
    names = [setting.name for setting in SETTINGS]
    raise UsageError(
        f"{file}: unknown key {key!r}: {did_you_mean(key, names) or 'expected ' + ', '.join(names)}"
    )


def did_you_mean(word: str, words: list[str], prefix: str = "") -> str:
    """Say "did you mean --store?", or "" where nothing is near."""
    import difflib  # only for those who erred

    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {prefix}{near[0]}?" if near else ""
