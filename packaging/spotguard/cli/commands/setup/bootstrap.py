"""`spotguard bootstrap CLOUD [options] -- COMMAND...`: user-data for a launch template."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from spotguard.agent.config.parsers import DEADLINE_EXAMPLE
from spotguard.bootstrap import iam_policy, plan, render, warnings
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError
from spotguard.providers.text import did_you_mean

from ...parser import Parser, add_settings, settings_given
from ...redaction import repeated

DESCRIPTION = """\
Print cloud-init user-data. A machine with this user-data installs spotguard, guards COMMAND from its first
boot on, and resumes from the newest checkpoint. It contains no secret, and lists at its top the options
with which to create the machine."""

EXAMPLES = """\
examples:
  spotguard bootstrap aws --store s3://checkpoints/gpt --run-id gpt-7b \\
      --package https://wheels.example.org/spotguard-0.1.0-py3-none-any.whl -- torchrun train.py >user-data
  spotguard bootstrap gcp --store gs://checkpoints/gpt --run-id gpt-7b --window 120 --startup-script \\
      --package /srv/spotguard-0.1.0-py3-none-any.whl --with torch --then poweroff -- python train.py
  spotguard bootstrap azure --store 'az://checkpoints/gpt?account=acme' --policy"""

_OURS = ("package", "index", "others", "python", "user", "directory", "prepare", "restart", "then")

#: Help texts of options that `run --help` explains by this machine and its directory.
_HELP = {
    "provider": "poll this machine's cloud, or none [its cloud]",
    "store": "save to s3://, gs://, az:// or a network file system (required)",
    "run-id": "resume under this name (required)",
    "deadline": f"end by then: {DEADLINE_EXAMPLE}Z, Unix seconds, or 2h after each start",
    "socket": "listen here for training processes [the unit's directory]",
    "stage": "write background checkpoints to the machine's own disk first",
}
#: Options of `run` that bootstrap refuses: the machine has its own config file, and its unit relies on exit code 75.
_NOT_HERE = ("config", "exit-code")


*_OTHERS, _LAST = plan.CLOUDS
_CLOUDS = f"{', '.join(_OTHERS)} or {_LAST}"
_AS_IN = f"as in spotguard bootstrap {plan.CLOUDS[0]}"


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of spotguard, and the command's words after `--`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def add_arguments(parser: Parser) -> None:
    parser.usage = "spotguard bootstrap {aws,gcp,azure} [options] -- COMMAND..."
    parser.of_words = "the command follows --, as in … -- torchrun train.py"
    parser.of_clouds = f"the cloud is the first word, {_AS_IN}"
    choices = f"{{{','.join(plan.CLOUDS)}}}"
    parser.add_argument(
        "cloud", nargs="?", type=_cloud, metavar=choices, help="select the cloud of the machines"
    )
    machine = parser.add_argument_group("the machine")
    machine.add_argument(
        "--package",
        metavar="SPEC",
        help="install spotguard from here: requirement, wheel URL or path (required)",
    )
    machine.add_argument(
        "--with",
        metavar="SPEC",
        dest="others",
        action="append",
        default=[],
        help="install this package as well, such as torch; repeatable",
    )
    machine.add_argument("--index", metavar="URL", help="use this package index")
    machine.add_argument(
        "--python",
        metavar="PATH",
        help="use this Python, which has torch [the first of 3.11 to 3.14]",
    )
    machine.add_argument(
        "--user",
        metavar="NAME",
        default="train",
        help="run the command as this user, made if missing [train]",
    )
    machine.add_argument(
        "--directory", metavar="PATH", help="run the command in this directory [the user's home]"
    )
    machine.add_argument(
        "--prepare",
        metavar="COMMAND",
        help="run this once before the job, as that user: a git clone",
    )
    machine.add_argument(
        "--restart",
        metavar="WHEN",
        choices=plan.RESTARTS,
        default="no",
        help="restart the unit: no, on-failure or always; 75 always does [no]",
    )
    machine.add_argument(
        "--then",
        metavar="COMMAND",
        help="run this as root after the job's end, such as poweroff",
    )
    machine.add_argument(
        "--startup-script",
        action="store_true",
        help="print a shell script, for GCP images without cloud-init",
    )
    machine.add_argument(
        "--policy",
        action="store_true",
        help="print the least permissions that the machine needs in --store",
    )
    add_settings(
        parser,
        "run",
        intro="The options of spotguard run are written to the machine's files.",
        help_of=_HELP,
        hidden=_NOT_HERE,
    )


def _cloud(word: str) -> str:
    if word not in plan.CLOUDS:
        near = did_you_mean(word, list(plan.CLOUDS)) or f"expected {_CLOUDS}, {_AS_IN}"
        raise UsageError(f"unknown cloud {repeated(word)!r}: {near}")
    return word


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    if arguments.cloud is None:
        raise UsageError(f"which cloud? Expected {_CLOUDS}, {_AS_IN}")
    flags = settings_given(arguments, "run")
    if arguments.policy:
        if not flags.get("store"):
            raise UsageError("--policy: of which store? Pass --store, as for the machine")
        sys.stdout.write(iam_policy.policy(arguments.cloud, flags["store"]))
        return 0
    if arguments.startup_script and arguments.cloud != "gcp":
        raise UsageError(
            f"--startup-script is Google's: images of {arguments.cloud} have cloud-init, which takes what is printed without it"
        )
    wish = plan.MachineWish(**{name: getattr(arguments, name) for name in _OURS})
    made = plan.make(arguments.cloud, flags, command, wish, SystemClock())
    text = render.startup_script(made) if arguments.startup_script else render.cloud_config(made)
    for doubt in warnings.doubts(made):
        print(f"spotguard: warning: {doubt}", file=sys.stderr)
    sys.stdout.write(text)
    if sys.stdout.isatty():
        print(
            "spotguard: this is for a file (>user-data): its first lines list the options of the machine",
            file=sys.stderr,
        )
    return 0
