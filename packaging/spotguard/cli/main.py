"""The `spotguard` command line: it finds the named command's module and runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

import spotguard
from spotguard.cli.exit import ended
from spotguard.providers.errors import UsageError

#: The commands, each with its room and its summary, in the order in which a new user needs them.
COMMANDS = {
    "run": ("guard", "guard a command: watch, save, end, exit with 75"),
    "agent": ("guard", "watch for all runs of this machine, as a service"),
    "simulate": ("trials", "serve a metadata service on loopback that issues notices"),
    "drill": ("guard", "rehearse an emergency save on a running job"),
    "status": ("guard", "show guarded runs and active notices"),
    "doctor": ("trials", "check that this machine can save in time, and how to fix it"),
    "prove": ("trials", "run, preempt and resume your script, and compare every bit"),
    "ls": ("checkpoints", "list the checkpoints in a store"),
    "report": ("checkpoints", "show where a run's time went, as a page or JSON"),
    "inspect": ("checkpoints", "show the content of one checkpoint"),
    "verify": ("checkpoints", "read a checkpoint and compare every checksum"),
    "export": ("checkpoints", "write a checkpoint as DCP or as one safetensors file"),
    "deploy": ("setup", "print a Dockerfile, manifests, a Slurm script, or alerts"),
    "bootstrap": ("setup", "print cloud-init user-data for machines that guard a job"),
    "prune": ("checkpoints", "delete all but the newest checkpoints"),
    "demo": ("trials", "play a preemption on a simulated cloud, in a minute or two"),
}


DESCRIPTION = "Save a PyTorch training job when the cloud preempts its spot machine, and resume it."

EXAMPLES = """\
examples:
  spotguard run -- python train.py
  spotguard status --watch
  spotguard drill

spotguard COMMAND --help explains each command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ended(lambda: _dispatch(words))


def _dispatch(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        return _without_command(words)
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        from spotguard.cli.commands.setup.deploy import KINDS
        from spotguard.cli.redaction import repeated
        from spotguard.providers.text import did_you_mean

        if name in KINDS:
            raise UsageError(f"unknown command {name!r}: use spotguard deploy {name}")
        near = did_you_mean(name, list(COMMANDS)) or f"expected one of {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {repeated(name)!r}: {near}")
    from spotguard.cli.parser import Parser

    module = _module(name)
    parser = Parser(
        prog=f"spotguard {name}",
        description=module.DESCRIPTION,
        epilog=module.EXAMPLES,
    )
    module.add_arguments(parser)
    if hasattr(module, "split"):
        ours, command = module.split(rest)
        return int(module.run(parser.parse_args(ours), command))
    return int(module.run(parser.parse_args(rest)))


def _without_command(words: list[str]) -> int:
    from spotguard.cli.parser import Parser

    listed = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
    parser = Parser(
        prog="spotguard",
        usage="spotguard COMMAND [options]",
        description=f"{DESCRIPTION}\n\ncommands:\n{listed}",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {spotguard.__version__}")
    parser.parse_args(words)
    parser.print_help(sys.stderr)
    raise UsageError("no command given: expected one of the above")


def _module(name: str) -> ModuleType:
    room, _ = COMMANDS[name]
    return importlib.import_module(f"spotguard.cli.commands.{room}.{name}")
