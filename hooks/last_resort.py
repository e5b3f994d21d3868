"""What a person at the terminal is told, also where the script has set up no logging.

Python shows warnings there by itself (`logging.lastResort`), and nothing below: a newcomer saw a run that goes on from step 300,
or that has nothing left to do, without a word. The few lines that say so are no warnings. They are logged as any other,
and where nobody has set anything up they are shown the way a warning would be. Whoever has said anything of logging (a
handler, be it one that does nothing, or a level for `spotguard`) is shown what that says, and no more.
"""

from __future__ import annotations

import logging

log = logging.getLogger("spotguard")


def tell(text: str, *, aloud: bool = True) -> None:
    """Log it, and see that it is read.

    Args:
        aloud: False: somebody else shows it at this very terminal.
    """
    log.info("%s", text)
    if aloud and logging.lastResort is not None and _nothing_is_set_up():
        logging.lastResort.handle(
            log.makeRecord(log.name, logging.INFO, __file__, 0, f"spotguard: {text}", (), None)
        )


def _nothing_is_set_up() -> bool:
    """Whether a warning would come to the last resort, and nobody has raised our own level above these lines."""
    return not log.hasHandlers() and log.isEnabledFor(logging.WARNING) and log.level <= logging.INFO
