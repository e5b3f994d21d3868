"""The parser of every command. Each error is a one-line `UsageError`, with the nearest valid word."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from spotguard.agent.config.parsers import PROVIDERS
from spotguard.agent.config.settings import OptionGroup, Setting, settings_of
from spotguard.providers.errors import UsageError
from spotguard.providers.text import did_you_mean

from .redaction import names_a_store, repeated


def flag_of(word: str) -> str:
    """Return the flag that is missing before a bare word: a cloud's name or a store's URL. "" for any other word."""
    if word in PROVIDERS:
        return "--provider"
    return "--store" if names_a_store(word) else ""


class HelpLayout(argparse.HelpFormatter):
    """Help that is wrapped to the terminal's width: `COLUMNS`, or what the terminal has. Examples keep their lines, to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_wrapped(paragraph, width) for paragraph in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _wrapped(paragraph: str, width: int) -> str:
    head, *lines = paragraph.split("\n")
    if head == "examples:":
        return paragraph
    if not lines or not all(line.startswith("  ") for line in lines):
        return textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False)
    # A list below its title: each line is a word and its explanation.
    wrapped = [head]
    for line in lines:
        column = re.match(r" +\S+ +", line)
        under = " " * (len(column[0]) if column else 2)
        wrapped += textwrap.wrap(line, width, subsequent_indent=under, break_on_hyphens=False)
    return "\n".join(wrapped)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations: a flag added in a later version must not change the meaning of an abbreviation."""

    def __init__(self, **keywords: Any) -> None:
        keywords.setdefault("formatter_class", HelpLayout)
        #: Hints in the errors about a bare word that is no store, about `--cloud` (a flag of other tools), and about a flag that is
        #: like none of these. "": no hint.
        self.of_words = self.of_clouds = self.of_flags = ""
        super().__init__(allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: see {self.prog} --help")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = unknown[0]
            chosen = self._chosen(parsed)
            if word.startswith("-"):
                kind, word = "flag", word.partition("=")[0]
                near = chosen._flag_near(word)
            else:
                kind, near = "word", chosen._flag_for(word)
                word = repeated(word)
            raise UsageError(f"unknown {kind} {word!r}: {near or f'see {chosen.prog} --help'}")
        return parsed

    def _chosen(self, parsed: argparse.Namespace) -> Parser:
        """Return the parser of the subcommand that was given; this one without."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                one = action.choices.get(getattr(parsed, action.dest, None) or "")
                return one if isinstance(one, Parser) else self
        return self

    def _flag_near(self, word: str) -> str:
        known = self._known_flags()
        if word == "--cloud":  # too different from any flag for a spelling match
            return self.of_clouds or ("did you mean --provider?" if "--provider" in known else "")
        if word == "--store" and any(
            action.metavar == "URL" and not action.option_strings for action in self._actions
        ):
            return f"the store is a word of its own, as in {self.prog} s3://bucket/prefix"
        return did_you_mean(word, known) or self.of_flags

    def _flag_for(self, word: str) -> str:
        flag = flag_of(word)
        if flag not in self._known_flags() or (flag == "--provider" and self.of_words):
            return self.of_words
        return f"did you mean {flag} {word}?" if repeated(word) == word else f"did you mean {flag}?"

    def _known_flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]


_PLACES = "Each option is also SPOTGUARD_<NAME> in the environment, and a key of the file of --config."


def add_settings(
    parser: argparse.ArgumentParser,
    command: str,
    *,
    intro: str = _PLACES,
    help_of: Mapping[str, str] | None = None,
    hidden: Sequence[str] = (),
) -> None:
    """Add the flags of `command`'s options to the parser. Values stay text, because `agent.config.resolve` parses all options.

    Args:
        intro: the text below the options in the help.
        help_of: help texts by option name, in place of those of `command`.
        hidden: options that the parser accepts and the help does not show. The caller refuses them with a message of its own.
    """
    words = {setting.name: setting.help_of(command) for setting in settings_of(command)}
    words |= {"config": "read options from this TOML file"} | dict(help_of or {})
    words |= dict.fromkeys(hidden, argparse.SUPPRESS)
    for title in OptionGroup:
        settings = [setting for setting in settings_of(command) if setting.group is title]
        if not settings:
            continue
        group = parser.add_argument_group(title)
        for setting in settings:
            _add_setting(group, setting, words[setting.name])
    group.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=words["config"])
    parser.epilog = f"{intro}\n\n{parser.epilog}" if parser.epilog else intro


def _add_setting(group: argparse._ArgumentGroup, setting: Setting, text: str) -> None:
    text = text.replace("%", "%%")
    if not setting.is_switch:
        group.add_argument(
            setting.flag,
            action=_Joined if setting.several else "store",
            dest=setting.name,
            metavar=setting.metavar,
            default=argparse.SUPPRESS,
            help=text,
        )
        return
    for flag, value, words in (
        (setting.flag, "true", text),
        (f"--no-{setting.name}", "false", argparse.SUPPRESS),
    ):
        group.add_argument(
            flag, dest=setting.name, action="store_const", const=value, default=argparse.SUPPRESS, help=words
        )


class _Joined(argparse.Action):
    """A flag that may be given several times: commas separate its values, as in the environment."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def settings_given(arguments: argparse.Namespace, command: str) -> dict[str, str]:
    """Return the values of the options set on the command line, by option name. Unset options are absent."""
    names = [setting.name for setting in settings_of(command)] + ["config"]
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
