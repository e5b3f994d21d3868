"""What `spotguard run` gives its command by the environment, and what a `spotguard` inside that command leaves there.

A command may start a `spotguard run` of its own. That one has another socket and another run id, or it would ask
for those of the agent around it; store and cadence may well be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.options import PARENT

if TYPE_CHECKING:  # the table of options is the front door's
    from ..config.options import Options


def exported(options: Options, socket: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: ours, and what `spotguard.register` reads."""
    said = {
        PARENT: f"{options.run_id}:{socket}",
        "SPOTGUARD_SOCKET": str(socket),
        "SPOTGUARD_RUN_ID": options.run_id,
        "SPOTGUARD_STORE": options.store,
        "SPOTGUARD_EVERY": options.every,
        "SPOTGUARD_KEEP": options.keep,
        "SPOTGUARD_STAGE": options.stage,
        "SPOTGUARD_LOSSY_MOMENTS": "yes" if options.lossy_moments else "",
        "SPOTGUARD_EXTRAS_WORTH": options.extras_worth,
        "SPOTGUARD_BEGIN_ANEW": "yes" if options.begin_anew else "",
    }
    # Its endpoint is one agent's: a `spotguard run` inside the command would find the port taken, and refuse to start.
    env = {name: value for name, value in env.items() if name != "SPOTGUARD_METRICS_PORT"}
    return {**env, **{name: str(value) for name, value in said.items() if value not in (None, "")}}
