"""`spotguard prove [options] -- COMMAND`: test whether a script resumes exactly."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.text import Text

from spotguard.agent.config import parsers
from spotguard.attach import variables
from spotguard.prove import page
from spotguard.prove.copies import Original, links
from spotguard.prove.proof import EXIT_CODES, ProofRequest, prove
from spotguard.prove.series import FEWEST_STEPS
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError

from ...output import add_json, console, print_json
from ...parser import Parser
from ..guard.run import OF_FLAGS, split_at

DESCRIPTION = """\
Run COMMAND undisturbed, twice, then preempt and kill it, and resume it. Each run has a copy of this
directory and a store of its own. Compare every registered tensor, the generators, all parameters that an
optimizer moved, and the losses, bit for bit.

EXACT has exit code 0. INEXACT has 1, with the first difference, the likely cause and the remedy. UNSURE
has 3: two undisturbed runs differ, or share files. 4 means no verdict: a run failed, hung or did not
resume."""

EXAMPLES = """\
examples:
  spotguard prove -- python train.py
  spotguard prove --steps 200 --tries 4 -- python train.py --epochs 3
  spotguard prove --link data -- torchrun --standalone --nproc-per-node 2 train.py"""

FORM = "the command is missing: use spotguard prove [options] -- COMMAND, as in spotguard prove -- python train.py"

_STEPS, _TRIES, _TIMEOUT, _COPY_LIMIT = 50, 2, 300.0, 10
LEAST_TIMEOUT = 5.0
#: Options about the directory that take a value.
WITH_VALUE = frozenset({"--link", "--copy-limit", "--folder"})
#: Launchers whose processes rendezvous at a port of this machine. Two such runs at a time would join each other.
_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "srun", "torch.distributed.run"}
)


def add_arguments(parser: Parser) -> None:
    parser.usage = "spotguard prove [options] -- COMMAND..."
    parser.of_flags = OF_FLAGS
    runs = parser.add_argument_group("runs")
    runs.add_argument("--steps", metavar="N", help=f"train this many steps in each run [{_STEPS}]")
    runs.add_argument(
        "--tries", metavar="K", help=f"preempt at this many steps, beside events and the kill [{_TRIES}]"
    )
    runs.add_argument(
        "--timeout", metavar="SECONDS", help=f"give up a run without a step for this long [{_TIMEOUT:g}]"
    )
    runs.add_argument("--jobs", metavar="N", help="run this many at a time [2; 1 with a launcher or a GPU]")
    runs.add_argument(
        "--attach", action="store_true", help="guard a Trainer in an unchanged script, as run --attach does"
    )
    runs.add_argument("--fail-fast", action="store_true", help="end all runs once one of them differs")
    add_directory(parser.add_argument_group("directory"))
    add_json(parser.add_argument_group("output"))


def add_directory(group: argparse._ArgumentGroup) -> None:
    """Add the options about the copy of the working directory. `doctor --trial` has them too."""
    group.add_argument(
        "--link",
        metavar="DIR",
        action="append",
        help="link to this directory instead of copying it; repeatable",
    )
    group.add_argument(
        "--copy-limit", metavar="GIB", help=f"refuse to copy a larger directory [{_COPY_LIMIT}]"
    )
    group.add_argument("--folder", metavar="DIR", help="write everything here and keep it [temporary]")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of spotguard, and the command's words, split as `run` splits them."""
    return split_at(words, WITH_VALUE | {"--steps", "--tries", "--timeout", "--jobs"})


def run(arguments: argparse.Namespace, command: Sequence[str] = ()) -> int:
    trial = _trial(arguments, command)
    with _ended_in_order():
        proof = prove(trial, SystemClock(), _tell_nobody if arguments.json else _tell)
    if arguments.json:
        print_json(page.as_json(proof, command))
    else:
        out = console()
        for words, style in page.lines(proof, command, out.width if out.is_terminal else None):
            out.print(Text(words, style), soft_wrap=True)
    return EXIT_CODES[proof.verdict]


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """On SIGTERM (`timeout 60 spotguard prove …`) or SIGHUP, end all runs and remove their directories, as Ctrl-C does."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = {signum: signal.signal(signum, leave) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _tell(line: str) -> None:
    sys.stderr.write(f"spotguard: {line}\n")  # one write: runs beside each other tell of themselves
    sys.stderr.flush()


def _tell_nobody(line: str) -> None:
    """Print nothing: the final page has everything."""


def _trial(arguments: argparse.Namespace, command: Sequence[str]) -> ProofRequest:
    """Return the request for a proof, from the command line.

    Raises:
        UsageError: an option, or the command, cannot be used.
    """
    if not command:
        raise UsageError(FORM)
    refuse_run(command, "prove")
    steps = whole("--steps", arguments.steps, _STEPS, FEWEST_STEPS)
    tries = whole("--tries", arguments.tries, min(_TRIES, steps - 1), 1, steps - 1)
    jobs = whole("--jobs", arguments.jobs, _jobs(command), 1)
    stall = _TIMEOUT if arguments.timeout is None else parsers.seconds("--timeout", arguments.timeout)
    if stall < LEAST_TIMEOUT:
        raise UsageError(
            f"--timeout {arguments.timeout!r}: expected {LEAST_TIMEOUT:g} seconds or more, for torch takes some to start"
        )
    return ProofRequest(
        command=command,
        env={**os.environ, **variables(os.environ)} if arguments.attach else os.environ,
        original=original_of(arguments),
        steps=steps,
        tries=tries,
        stall=stall,
        jobs=jobs,
        most=copy_limit(arguments),
        fail_fast=arguments.fail_fast,
        folder=kept_folder(arguments.folder),
    )


def original_of(arguments: argparse.Namespace) -> Original:
    """Return the working directory, with the directories of `--link`."""
    here = Path(os.path.realpath(os.getcwd()))
    return Original(here, links(here, arguments.link or ()))


def copy_limit(arguments: argparse.Namespace) -> int:
    """Return the bytes of `--copy-limit`."""
    return whole("--copy-limit", arguments.copy_limit, _COPY_LIMIT, 0, 2**30) * 2**30


def whole(flag: str, text: str | None, default: int, least: int, most: int | None = None) -> int:
    return default if text is None else parsers.at_least(least, most)(flag, text)


def _jobs(command: Sequence[str]) -> int:
    """Return how many runs go at a time by default.

    Two runs at a time use the processor time that one leaves idle. A run may need a GPU's whole memory, and two runs of a
    launcher would share a port. In both cases one run goes at a time.
    """
    launched = (
        not _LAUNCHERS.isdisjoint({os.path.basename(word) for word in command}) or "MASTER_PORT" in os.environ
    )
    return 1 if launched or any(map(os.path.exists, ("/dev/nvidia0", "/dev/kfd"))) else 2


def kept_folder(text: str | None) -> Path | None:
    """Return the directory of `--folder`, which is made if it is missing; None without the flag.

    Raises:
        UsageError: the directory is not empty, or cannot be made.
    """
    if text is None:
        return None
    path = Path(os.path.realpath(text))
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"--folder {text!r} is not empty: name a new one, or remove its content")
    except OSError as error:
        raise UsageError(
            f"--folder {text!r}: {error.strerror}; name a directory that can be made and written to"
        ) from error
    return path


def refuse_run(command: Sequence[str], name: str) -> None:
    """Refuse a command that is `spotguard run` itself.

    Args:
        name: the command of spotguard that was given it.

    Raises:
        UsageError: it is.
    """
    words = [os.path.basename(word) for word in command[:4]]
    if words[:2] == ["spotguard", "run"] or words[1:] == ["-m", "spotguard", "run"]:
        own = " ".join(command[command.index("--") + 1 :]) if "--" in command else "COMMAND"
        raise UsageError(f"{name} guards the command by itself: use spotguard {name} -- {own}")
