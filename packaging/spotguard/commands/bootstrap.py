"""`spotguard bootstrap CLOUD [options] -- COMMAND...`: what a launch template is given."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from spotguard.bootstrap import plan, policy, user_data
from spotguard.providers.errors import UsageError

from .parsers import add_settings, settings_given

DESCRIPTION = """\
Prints cloud-init user-data: a machine that is created with it installs spotguard, guards COMMAND
from its first boot on, and goes on from the newest checkpoint. It holds nothing secret, and says
at its top how the machine has to be created."""

EXAMPLES = """\
examples:
  spotguard bootstrap aws --store s3://checkpoints/gpt --run-id gpt-7b -- torchrun train.py >user-data
  spotguard bootstrap gcp --store gs://checkpoints/gpt --run-id gpt-7b --window 120 --startup-script -- python train.py
  spotguard bootstrap azure --store az://checkpoints?account=name --policy"""

_OURS = ("package", "index", "python", "user", "directory", "prepare", "restart")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words, and the command's behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "spotguard bootstrap {aws,gcp,azure} [options] -- COMMAND..."
    parser.add_argument("cloud", choices=plan.CLOUDS, help="whose machines they are")
    machine = parser.add_argument_group("the machine")
    machine.add_argument(
        "--package",
        metavar="SPEC",
        default="",
        help="what pip installs: a requirement, a URL, or a wheel on the machine (default: this version)",
    )
    machine.add_argument(
        "--index", metavar="URL", default="", help="the package index, where it is not pip's own"
    )
    machine.add_argument(
        "--python",
        metavar="PATH",
        default="",
        help="the job's Python, the one with torch (default: the first of 3.11 to 3.14)",
    )
    machine.add_argument(
        "--user",
        metavar="NAME",
        default="train",
        help="who runs the command (default: train); made where missing",
    )
    machine.add_argument(
        "--directory", metavar="PATH", default="", help="where it runs (default: the user's home)"
    )
    machine.add_argument(
        "--prepare",
        metavar="COMMAND",
        default="",
        help="run once by that user, there, before the job: a git clone",
    )
    machine.add_argument(
        "--restart",
        metavar="WHEN",
        choices=plan.RESTARTS,
        default="no",
        help="when the unit is started again, as systemd has it: no (the default), on-failure or always; after 75 it always is",
    )
    machine.add_argument(
        "--startup-script",
        action="store_true",
        help="a shell script instead, for an image without cloud-init (GCP's Debian)",
    )
    machine.add_argument(
        "--policy",
        action="store_true",
        help="print the least that the machine's identity needs in --store, and no more",
    )
    add_settings(parser, "run")


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    flags = settings_given(arguments, "run")
    if arguments.policy:
        if not flags.get("store"):
            raise UsageError("--policy: of which store? Say --store, as for the machine")
        sys.stdout.write(policy.policy(arguments.cloud, flags["store"]))
        return 0
    made = plan.make(arguments.cloud, flags, command, **{name: getattr(arguments, name) for name in _OURS})
    sys.stdout.write(
        user_data.startup_script(made) if arguments.startup_script else user_data.cloud_config(made)
    )
    return 0
