"""`spotguard run` with the machine's service at another path than the system's: `relayed.py SERVICE OPTIONS -- COMMAND`."""

from __future__ import annotations

import sys
from pathlib import Path

from spotguard.agent import app
from spotguard.cli.commands.guard.run import log_as, options_for, split


def main(service: str, words: list[str]) -> int:
    ours, command = split(words)
    flags = {flag.removeprefix("--"): value for flag, value in zip(ours[::2], ours[1::2], strict=True)}
    options = options_for(flags, command)
    log_as(options)
    return app.run(options, command, service_socket=Path(service))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
