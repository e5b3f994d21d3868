"""Selection of the agent that a command asks: by run id, by socket, or the only agent of this machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from spotguard.agent.config import parsers
from spotguard.agent.ipc import control


def add_whom(parser: argparse.ArgumentParser, otherwise: str = "the only one") -> None:
    parser.add_argument("--run-id", metavar="NAME", help=f"select this run [{otherwise}]")
    parser.add_argument("--socket", metavar="PATH", help="select the agent at this socket")


def whom(arguments: argparse.Namespace) -> Path | None:
    """Return the socket of the agent that the command line names; None if it names none."""
    if arguments.socket is None and arguments.run_id is None:
        return None
    return the_one(arguments)


def the_one(arguments: argparse.Namespace) -> Path:
    """Return the socket of the agent that the command line names, else of the only agent."""
    run_id = checked_run_id(arguments.run_id)
    socket = None if arguments.socket is None else parsers.socket_path("--socket", arguments.socket)
    return control.choose(run_id, socket, os.environ, os.geteuid())


def checked_run_id(run_id: str | None) -> str | None:
    return None if run_id is None else parsers.run_id("--run-id", run_id)
