"""`spotguard run [options] -- COMMAND...`: guard a command."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from spotguard import attach
from spotguard.agent.config import resolve
from spotguard.agent.config.options import Options
from spotguard.agent.config.settings import settings_of
from spotguard.agent.process import terminal
from spotguard.providers.errors import UsageError
from spotguard.providers.optional_deps import how_to_install
from spotguard.providers.stores.url import CLOUDS, scheme_of

from ...parser import Parser, add_settings, settings_given

logger = logging.getLogger("spotguard.cli")

DESCRIPTION = """\
Run COMMAND, watch for the cloud's notice, have the training process save its state in time, and exit
with 75 ("run me again"). Without a notice, exit with COMMAND's own code. Ctrl-C saves first and ends
with 130; a second Ctrl-C ends at once."""

EXAMPLES = """\
examples:
  spotguard run -- python train.py --epochs 90
  spotguard run --store /mnt/nfs/checkpoints --every 5m -- python train.py
  until spotguard run -- python train.py; do [ $? = 75 ] || break; done"""

FORM = (
    "the command is missing: use spotguard run [options] -- COMMAND, as in spotguard run -- python train.py"
)

#: About an unknown flag, which most likely is one of the command.
OF_FLAGS = "flags of the command go behind it, as in -- python train.py --epochs 3"


def split(words: Sequence[str], more: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Return the words of spotguard, and the command's words.

    Args:
        words: the command line after `spotguard COMMAND`.
        more: options with a value that `run` does not have.
    """
    with_value = {setting.flag for setting in settings_of("run") if not setting.is_switch}
    return split_at(words, {*with_value, "--config", *more})


def split_at(words: Sequence[str], with_value: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the words of spotguard, and the command's words.

    The command begins after `--`, or at the first word that is no option of spotguard. argparse is not used here, because it
    would look for spotguard's options among the command's words.

    Args:
        words: the command line after `spotguard COMMAND`.
        with_value: the options of spotguard that take a value.
    """
    at = 0
    while at < len(words):
        if words[at] == "--":
            return list(words[:at]), list(words[at + 1 :])
        if not words[at].startswith("-"):
            break
        at += 2 if words[at] in with_value else 1
    return list(words[:at]), list(words[at:])


def add_arguments(parser: Parser) -> None:
    parser.usage = "spotguard run [options] -- COMMAND..."
    parser.of_flags = OF_FLAGS
    add_settings(parser, "run")


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    if not command:
        raise UsageError(FORM)
    options = options_for(settings_given(arguments, "run"), command)
    if not options.store_given:
        from ....providers.stores.names import read_place

        read_place("the default", options.store)
    log_as(options)
    warn_of_unknown_variables()
    _warn_of_a_store_that_dies(options)
    _warn_of_a_missing_sdk(options)
    from spotguard.agent import app

    code = app.run(options, list(command), attach.variables(os.environ) if options.attach else None)
    if code == 128 + signal.SIGINT:
        pass_on_the_interrupt()
    return code


def pass_on_the_interrupt() -> None:
    """Send SIGINT to the agent's own process group after Ctrl-C ended the command.

    Without spotguard, the processes around the command would get this signal. The keyboard's SIGINT went to the command's
    group only. A script in the agent's group (`while …; do spotguard run …`) would start the command again, and the user
    could not stop the script from the keyboard.

    Raises:
        KeyboardInterrupt: at a terminal. `main` then ends by SIGINT itself, because a shell checks for that.
    """
    if not terminal.in_front():
        return
    if not terminal.feeds_a_pipe():  # else the agent kept the terminal, and its whole group got the SIGINT
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.killpg(0, signal.SIGINT)
    raise KeyboardInterrupt


def options_for(
    flags: dict[str, str],
    command: Sequence[str],
    *,
    run_id: str | None = None,
    readers: Mapping[str, Callable[[str, str], Any]] | None = None,
) -> Options:
    """Return the options of this run. The default run id and store are those of a bare `register` in the same command.

    Args:
        flags: the options set on the command line, by name.
        command: the command and its arguments.
        run_id: another default run id, for a caller without a command.
        readers: other readers by option name, for a caller that checks less closely.
    """
    from spotguard.hooks.arguments.names import default_run_id, default_store

    from ....providers.stores.names import read_place

    folder = os.getcwd()
    name = default_run_id(command, folder, os.environ) if run_id is None else run_id
    defaults = {"run-id": name, "store": default_store(folder)}
    checked = {"store": read_place, **(readers or {})}
    return resolve.resolve("run", flags, os.environ, defaults=defaults, readers=checked)


def log_as(options: Options) -> logging.Handler:
    """Send all log lines to stderr, because stdout belongs to the command. Return the handler, so that a caller can remove it."""
    from spotguard.agent.telemetry import logs

    level = logging.getLevelNamesMapping()[options.log_level.upper()]
    return logs.configure(json_log=options.json_log, level=level)


def warn_of_unknown_variables() -> None:
    """Warn of unknown SPOTGUARD_ variables: a misspelt name would leave its option unset without a word."""
    for line in resolve.unknown_variables(os.environ):
        logger.warning("unknown variable, ignored: %s [SG701]", line)


def _warn_of_a_store_that_dies(options: Options) -> None:
    if options.store_given or options.provider == "none":
        return
    from spotguard.providers.clouds.detect import cloud_of

    cloud = cloud_of(options.provider)
    if cloud != "none":
        logger.warning(
            "checkpoints go to %s, a disk of THIS machine: when %s preempts it, they are lost with it. Pass a store "
            "that outlives it: --store s3://, gs:// or az://, or a directory of a network file system [SG309]",
            options.store,
            cloud,
        )


def _warn_of_a_missing_sdk(options: Options) -> None:
    """Warn early: the training process meets this only after it has loaded torch, once in each rank."""
    cloud = CLOUDS.get(scheme_of(options.store))
    if cloud is None or _is_installed(cloud.sdk):
        return
    logger.warning(
        "store %s needs %s, which is not installed here: if the command uses this Python, install it: %s [SG307]",
        options.store,
        cloud.sdk,
        how_to_install(cloud.extra),
    )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False
