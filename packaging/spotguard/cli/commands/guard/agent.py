"""`spotguard agent [options]`: the agent as a service of the whole machine."""

from __future__ import annotations

import argparse
import os

from spotguard.agent.config import resolve

from ...parser import add_settings, settings_given
from .run import log_as, warn_of_unknown_variables

DESCRIPTION = """\
Watch for the cloud's notice once for the whole machine, and notify every `spotguard run` and every
training process that has its socket. The agent starts and ends no command."""

EXAMPLES = """\
examples:
  spotguard agent
  spotguard agent --provider aws --json-log
  spotguard agent --socket /run/user/1000/spotguard/agent.sock"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "agent")


def run(arguments: argparse.Namespace) -> int:
    options = resolve.resolve("agent", settings_given(arguments, "agent"), os.environ)
    log_as(options)
    warn_of_unknown_variables()
    from spotguard.agent import app

    return app.serve(options)
