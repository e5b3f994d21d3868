"""The pages of commands and options say what the program itself says."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

import pytest

from spotguard.agent.config.options import SETTINGS, Setting
from spotguard.agent.outcome import Outcome, SessionOutcome
from spotguard.cli import main
from spotguard.cli.parser import Parser
from spotguard.providers.simulator.aws import cli as aws_cli
from spotguard.providers.simulator.gcp import cli as gcp_cli
from tests.cases import cases
from tests.docs.pages import ROOT, section

COMMANDS = ROOT / "docs" / "reference" / "commands.md"
CONFIGURATION = ROOT / "docs" / "reference" / "configuration.md"


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name in main.COMMANDS:
        parser = Parser(prog=f"spotguard {name}")
        main._module(name).add_arguments(parser)
        yield name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((f"{name} {word}", one) for word, one in action.choices.items())


def _rows(parser: argparse.ArgumentParser) -> list[str]:
    """What the page says about each argument: as `--help` says it."""
    rows = []
    for action in parser._actions:
        subcommands = isinstance(action, argparse._SubParsersAction)
        if action.help == argparse.SUPPRESS or action.dest == "help" or subcommands:
            continue
        name = action.option_strings[0] if action.option_strings else ""
        metavar = action.metavar or action.dest.upper()
        takes = "" if action.nargs == 0 else metavar if isinstance(metavar, str) else " ".join(metavar)
        if action.choices and action.metavar is None:
            takes = "{" + ",".join(map(str, action.choices)) + "}"
        words = (action.help or "").replace("%%", "%").replace("|", "\\|")
        rows.append(f"| `{f'{name} {takes}'.strip()}` | {words} |")
    return rows


PARSERS = dict(_parsers())


@cases("command", PARSERS)
def test_each_command_has_its_options_and_no_others(command: str) -> None:
    text = section(COMMANDS, f"{'##' if ' ' not in command else '###'} spotguard {command}")
    said = re.findall(r"^\| `.*$", text.partition("\n### ")[0], re.MULTILINE)
    assert said == _rows(PARSERS[command]), "as it must be:\n" + "\n".join(_rows(PARSERS[command]))


@pytest.mark.parametrize(("cloud", "verbs"), [("aws", aws_cli.VERBS), ("gcp", gcp_cli.VERBS)])
def test_each_verb_of_a_simulators_scripts_is_explained_and_no_other(
    cloud: str, verbs: Mapping[str, object]
) -> None:
    table = section(COMMANDS, f"### spotguard simulate {cloud}").partition("\n| verb |")[2]
    assert re.findall(r"^\| ([a-z-]+) \| ", table, re.MULTILINE) == list(verbs)


@pytest.mark.parametrize("command", [name for name in PARSERS if " " not in name])
def test_each_command_is_described_as_its_help_describes_it(command: str) -> None:
    text = " ".join(section(COMMANDS, f"## spotguard {command}").split())
    assert " ".join(main._module(command).DESCRIPTION.split()) in text


@cases("setting", SETTINGS)
def test_each_option_is_explained_with_its_flag_variable_and_key(setting: Setting) -> None:
    text = CONFIGURATION.read_text()
    row = re.search(rf"^\| `{setting.flag}`.*$", text, re.MULTILINE)
    assert row is not None, setting
    for word in (setting.variable, setting.name):
        assert f"`{word}`" in row[0]
    for command in setting.commands:
        assert command in row[0].rpartition(" | ")[0].rpartition(" | ")[2] + row[0].rpartition(" | ")[2]


def test_no_option_is_explained_that_is_not_there() -> None:
    said = re.findall(r"^\| `(--[a-z-]+)`", CONFIGURATION.read_text(), re.MULTILINE)
    assert said == [setting.flag for setting in SETTINGS]


@cases("name", [each.name for kind in (Outcome, SessionOutcome) for each in fields(kind)])
def test_each_field_of_an_outcome_is_explained(name: str) -> None:
    if name != "seen_at":  # on no record: `seen` is
        assert f"`{name}`" in section(ROOT / "docs" / "how-to" / "monitor.md", "## Outcomes")


if __name__ == "__main__":  # the tables, to be pasted
    for command, parser in PARSERS.items():
        print(f"\n{command}\n" + "\n".join(_rows(parser)))
