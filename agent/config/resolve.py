"""The options of `run` and `agent`, merged from flags, environment and file.

A flag overrides the environment, and the environment overrides the file. An unknown key of the file is an error. An unusable
value is an error that names its origin. An option that silently differs from the user's intention would only show on the day
of the notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...hooks.ipc.failure_classes import LAUNCH, RECOVERED, SKIP_STEPS
from ...providers.errors import UsageError
from ...providers.text import did_you_mean, value_in
from . import parsers
from .options import (
    CONFIG_VARIABLE,
    FAILURE_FACTS,
    LAST_FAILURE,
    LOADER_WORKERS,
    NOTICE_FACTS,
    PARENT,
    PREFIX,
    Options,
)
from .settings import SETTINGS, Setting

#: Variables of spotguard that are not options: of the command line, of an outer run, of the demo's machines.
_OTHERS = (
    CONFIG_VARIABLE,
    "SPOTGUARD_DEBUG",
    PARENT,
    "SPOTGUARD_DEMO_MACHINE",
    "SPOTGUARD_KERNEL_LOG",
    "SPOTGUARD_PROVE",
    "SPOTGUARD_SIMULATED_FAILURE",
    *NOTICE_FACTS,
    *FAILURE_FACTS,
    LAST_FAILURE,
    LAUNCH,
    LOADER_WORKERS,
    RECOVERED,
    SKIP_STEPS,
)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as the user wrote it, and the place where it was given."""

    origin: str
    text: str


def resolve(
    command: str,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    *,
    defaults: Mapping[str, object] | None = None,
    readers: Mapping[str, Callable[[str, str], Any]] | None = None,
) -> Options:
    """Return the options of `command`, merged from flags, environment, file and defaults.

    Args:
        command: "run" or "agent".
        flags: the texts of the command line's flags, by option name; "config" names the file.
        env: the environment, SPOTGUARD_CONFIG included.
        defaults: the defaults that depend on the command and the directory, by option name.
        readers: parsers that check more than this room can, by option name.

    Raises:
        UsageError: a value or key cannot be used. The message names its origin.
    """
    env = without_parent(env)
    given = _from_file(_file_name(flags, env))
    for setting in SETTINGS:
        if text := value_in(env, setting.variable):
            given[setting.name] = Given(setting.variable, text)
        if setting.name in flags:
            given[setting.name] = Given(setting.flag, flags[setting.name])
    values: dict[str, Any] = {"store_given": "store" in given}
    for setting in SETTINGS:
        values[setting.field] = (defaults or {}).get(setting.name, setting.default)
        if command in setting.commands and (value := given.get(setting.name)) is not None:
            read = (readers or {}).get(setting.name, setting.read)
            values[setting.field] = read(value.origin, value.text)
    for field in ("store", "run_id"):
        values[field] = values[field] or ""
    return Options(**values)


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """Return a line for each variable that looks like an option and is not one. It may belong to another program."""
    known = [*(setting.variable for setting in SETTINGS), *_OTHERS]
    strangers = sorted(name for name in env if name.startswith(PREFIX) and name not in known)
    return [f"{name}: {_variable_near(name, known) or 'see spotguard run --help'}" for name in strangers]


def _variable_near(name: str, known: list[str]) -> str:
    """Return a suggestion for a similar name. Names are compared without their common prefix, or all would be similar."""
    words = [one.removeprefix(PREFIX) for one in known]
    return did_you_mean(name.removeprefix(PREFIX), words, prefix=PREFIX)


def _file_name(flags: Mapping[str, str], env: Mapping[str, str]) -> Given | None:
    if "config" in flags:
        return Given("--config", flags["config"])
    return Given(CONFIG_VARIABLE, name) if (name := value_in(env, CONFIG_VARIABLE)) else None


def _from_file(name: Given | None) -> dict[str, Given]:
    if name is None:
        return {}
    import tomllib  # a megabyte of memory, so only for users with a file

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
        origin = f"{name.text}: {key}"
        values = value if setting.several and isinstance(value, list) else [value]
        given[setting.name] = Given(origin, ",".join(parsers.toml_text(origin, each) for each in values))
    return given


def _setting(file: str, key: str) -> Setting:
    for setting in SETTINGS:
        if key in (setting.name, setting.field):
            return setting
    names = [setting.name for setting in SETTINGS]
    raise UsageError(
        f"{file}: unknown key {key!r}: {did_you_mean(key, names) or 'expected ' + ', '.join(names)}"
    )


def without_parent(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the socket and run id of the outer agent. Values that were set since then stay."""
    run_id, _, socket = env.get(PARENT, "").partition(":")
    outer = {"SPOTGUARD_RUN_ID": run_id, "SPOTGUARD_SOCKET": socket}
    return {name: value for name, value in env.items() if not value or outer.get(name) != value}
