"""The `spotguard` command: finds the command's module, and turns every error into one line and a code.

Codes: 0 done, 1 it could not be done, 2 it was said wrongly, 126 and 127 as a shell says them, 130 Ctrl-C; `run`
answers with its command's own, or with 75. SPOTGUARD_DEBUG=1 shows where an error came from.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import spotguard
from spotguard.providers.errors import SpotguardError, UsageError

#: In the order in which a newcomer needs them.
COMMANDS = {
    "run": "guard a command: watch, signal, wait, exit",
    "agent": "the same watcher as a machine-wide service",
    "simulate": "a faithful metadata service on loopback that issues notices on demand",
    "drill": "a real emergency save on a running job, which then goes on",
    "status": "what is guarded now",
    "doctor": "whether this machine would save in time, and what to do where not",
    "ls": "the checkpoints in a store",
    "inspect": "what is in one checkpoint",
    "verify": "read a checkpoint again and compare every checksum",
    "export": "a checkpoint for other tools: plain DCP, or one safetensors file",
    "bootstrap": "cloud-init user-data for a machine that guards a job from its first boot",
    "prune": "delete all but the newest checkpoints",
    "demo": "the whole story on a simulated cloud, in a minute or two",
}

#: No commands: each prints a file that comes with an install, and is a module (`commands.printing`).
PRINTERS = ("containers", "monitoring", "slurm")

DESCRIPTION = "Save a PyTorch training job when the cloud takes its spot machine back, and go on from there."

EXAMPLES = """\
examples:
  spotguard run -- python train.py
  spotguard status --watch
  spotguard drill

spotguard COMMAND --help says more about each. A Dockerfile and Kubernetes manifests, Prometheus rules
and a dashboard, a batch script for Slurm: python -m spotguard.containers, .monitoring, .slurm"""


#: What a write(2) says of a disk that takes no more: stdout's, for every other file is somebody's who translates it.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ended(lambda: _dispatch(words))


def ended(work: Callable[[], int]) -> int:
    """Do it, and make one line and a code of every error."""
    _open_what_is_closed()
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()  # at the interpreter's end its error would be a traceback
    except SpotguardError as error:
        return _say(error, 2 if isinstance(error, UsageError) else getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # `spotguard ls … | head`: whoever read us has enough. Python would complain once more when it closes
        # stdout at its end, so that is closed here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:  # noqa: BLE001 - a bug of ours: still one line, with the way to more
        if isinstance(error, FileNotFoundError) and error.filename is None:  # as os.getcwd() says it
            return _say(error, 1, "the current folder is gone: go to one that is there (cd)")
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as above: Python would try once more
            return _say(
                error, 1, f"the answer could not be written: {error.strerror}: look at where stdout goes"
            )
        text = f"{type(error).__name__}: {error}; this is a bug: run it again with SPOTGUARD_DEBUG=1 and report it"
        return _say(error, 1, text)


def _open_what_is_closed() -> None:
    """A stream that is closed (`>&-`) stays so for the command. Here it must be there for who prints, and its number must
    not become a socket's. (What is opened takes the lowest free number, and is not inherited.)"""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _dispatch(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        return _without_command(words)
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        from spotguard.agent.config import did_you_mean
        from spotguard.commands.words import repeated

        if name in PRINTERS:
            raise UsageError(f"unknown command {name!r}: say python -m spotguard.{name}")
        near = did_you_mean(name, list(COMMANDS)) or f"expected one of {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {repeated(name)!r}: {near}")
    from spotguard.commands.parsers import Parser

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
    from spotguard.commands.parsers import Parser

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


def _interrupted() -> int:
    """End by SIGINT at a terminal: a shell leaves its loop only when it sees that (https://www.cons.org/cracauer/sigint.html)."""
    from spotguard.agent.terminal import in_front

    if in_front():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # no effect on a PID 1
    return 128 + signal.SIGINT


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"spotguard.commands.{name}")


def _say(error: BaseException, code: int, text: str | None = None) -> int:
    if os.environ.get("SPOTGUARD_DEBUG") == "1":
        raise error
    from spotguard.agent.scribe import Scribe

    # One line also where a foreign message that we quote has several. A reader that does not read, or a stderr that is
    # closed, costs the line and not the exit code.
    line = " ".join((text or str(error)).split())
    last = Scribe(sys.stderr, str)
    last.take(f"spotguard: error: {line}")
    last.close()
    return code
