"""The `spotguard` command line: it finds the named command's module and runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

import spotguard
from spotguard.cli.exit import ended
from spotguard.providers.errors import UsageError

#: The commands with their summaries, in the order in which a new user needs them.
COMMANDS = {
    "run": "guard a command: watch, signal, wait, exit",
    "agent": "the same watcher as a machine-wide service",
    "simulate": "a faithful metadata service on loopback that issues notices on demand",
    "drill": "a real emergency save on a running job, which then goes on",
    "status": "what is guarded now",
    "doctor": "whether this machine would save in time, and what to do where not",
    "prove": "run, preempt and resume your own script, and compare every bit",
    "ls": "the checkpoints in a store",
    "inspect": "what is in one checkpoint",
    "verify": "read a checkpoint again and compare every checksum",
    "export": "a checkpoint for other tools: plain DCP, or one safetensors file",
    "deploy": "a Dockerfile, Kubernetes manifests, a batch script for Slurm, Prometheus rules and a dashboard",
    "bootstrap": "cloud-init user-data for a machine that guards a job from its first boot",
    "prune": "delete all but the newest checkpoints",
    "demo": "the whole story on a simulated cloud, in a minute or two",
}


DESCRIPTION = "Save a PyTorch training job when the cloud takes its spot machine back, and go on from there."

EXAMPLES = """\
examples:
  spotguard run -- python train.py
  spotguard status --watch
  spotguard drill

spotguard COMMAND --help says more about each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ended(lambda: _dispatch(words))


def deploy_by_its_older_name(kind: str, words: Sequence[str] | None) -> int:
    """Run `spotguard deploy KIND` for `python -m spotguard.containers`, `.monitoring` or `.slurm`, and name the new command.

    These modules were the only way before `spotguard deploy` existed.
    """
    print(f"spotguard: python -m spotguard.{kind} is spotguard deploy {kind} now", file=sys.stderr)
    return main(["deploy", kind, *(sys.argv[1:] if words is None else words)])


def _dispatch(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        return _without_command(words)
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        from spotguard.cli.commands.deploy import KINDS
        from spotguard.cli.words import repeated
        from spotguard.providers.text import did_you_mean

        if name in KINDS:
            raise UsageError(f"unknown command {name!r}: say spotguard deploy {name}")
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

    listed = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    parser = Parser(
        prog="spotguard",
        usage="spotguard COMMAND [options]",
        description=f"{DESCRIPTION}\n\ncommands:\n{listed}",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {spotguard.__version__}")
    parser.parse_args(words)
    parser.print_help(sys.stderr)
    raise UsageError("which command? Say one of the above")


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"spotguard.cli.commands.{name}")
