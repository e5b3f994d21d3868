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

from ..parser import Parser, add_settings, settings_given
from ..words import repeated

DESCRIPTION = """\
Prints cloud-init user-data: a machine that is created with it installs spotguard, guards COMMAND
from its first boot on, and goes on from the newest checkpoint. It holds nothing secret, and says
at its top how the machine has to be created."""

EXAMPLES = """\
examples:
  spotguard bootstrap aws --store s3://checkpoints/gpt --run-id gpt-7b \\
      --package https://wheels.example.org/spotguard-0.1.0-py3-none-any.whl -- torchrun train.py >user-data
  spotguard bootstrap gcp --store gs://checkpoints/gpt --run-id gpt-7b --window 120 --startup-script \\
      --package /srv/spotguard-0.1.0-py3-none-any.whl --with torch --then poweroff -- python train.py
  spotguard bootstrap azure --store 'az://checkpoints/gpt?account=acme' --policy"""

_OURS = ("package", "index", "others", "python", "user", "directory", "prepare", "restart", "then")

#: Help texts of options that `run --help` explains by this machine and its folder.
_HELP = {
    "provider": "whose notices to watch: this cloud's (the default), or none",
    "store": "where checkpoints go: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix?account=NAME, or file:///path on a network file system (must be said)",
    "run-id": "the name to resume under (must be said)",
    "deadline": f"when the machine has to end: {DEADLINE_EXAMPLE}Z or +01:00, Unix seconds; or +3600 or 2h from each start of the job",
    "socket": "where training processes find us (default: in a folder that the unit makes)",
    "stage": "a folder on the machine's own disk: background checkpoints are written there first, and a restart there restores from it",
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
    parser.of_words = "the command stands behind --, as in … -- torchrun train.py"
    parser.of_clouds = f"the cloud is the first word, {_AS_IN}"
    choices = f"{{{','.join(plan.CLOUDS)}}}"
    parser.add_argument("cloud", nargs="?", type=_cloud, metavar=choices, help="whose machines they are")
    machine = parser.add_argument_group("the machine")
    machine.add_argument(
        "--package",
        metavar="SPEC",
        help="spotguard itself, for pip: a requirement, the URL of a wheel, or its path on the machine; the extra for --store is added (default: this version, once it is released)",
    )
    machine.add_argument(
        "--with",
        metavar="SPEC",
        dest="others",
        action="append",
        default=[],
        help="another package that pip installs beside it, where the image lacks it: torch; may be said again",
    )
    machine.add_argument("--index", metavar="URL", help="the package index, where it is not pip's own")
    machine.add_argument(
        "--python",
        metavar="PATH",
        help="the job's Python, the one with torch (default: the first of 3.11 to 3.14)",
    )
    machine.add_argument(
        "--user",
        metavar="NAME",
        default="train",
        help="who runs the command (default: train); made where missing",
    )
    machine.add_argument("--directory", metavar="PATH", help="where it runs (default: the user's home)")
    machine.add_argument(
        "--prepare",
        metavar="COMMAND",
        help="run once by that user, there, before the job: a git clone",
    )
    machine.add_argument(
        "--restart",
        metavar="WHEN",
        choices=plan.RESTARTS,
        default="no",
        help="when the unit is started again, as systemd has it: no (the default), on-failure or always; after 75 it always is, after 2 (wrong use) never",
    )
    machine.add_argument(
        "--then",
        metavar="COMMAND",
        help="run by root a minute after the job has ended for good, or the setup has failed: poweroff (default: the machine stays on); never after 75",
    )
    machine.add_argument(
        "--startup-script",
        action="store_true",
        help="a shell script instead, for an image of GCP's without cloud-init (Debian's)",
    )
    machine.add_argument(
        "--policy",
        action="store_true",
        help="print the least that the machine's identity needs in --store, and no more",
    )
    add_settings(
        parser,
        "run",
        intro="Of spotguard run, as the machine is to have them.",
        help_of=_HELP,
        hidden=_NOT_HERE,
    )


def _cloud(word: str) -> str:
    if word not in plan.CLOUDS:
        near = did_you_mean(word, list(plan.CLOUDS)) or f"say {_CLOUDS}, {_AS_IN}"
        raise UsageError(f"unknown cloud {repeated(word)!r}: {near}")
    return word


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    if arguments.cloud is None:
        raise UsageError(f"which cloud? Say {_CLOUDS}, {_AS_IN}")
    flags = settings_given(arguments, "run")
    if arguments.policy:
        if not flags.get("store"):
            raise UsageError("--policy: of which store? Say --store, as for the machine")
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
            "spotguard: this is for a file (>user-data): its first lines say how the machine has to be created",
            file=sys.stderr,
        )
    return 0
