"""The sources that are no cloud's: what the operator of this machine has said (`--deadline`, `--notice-file`).

A `run` looks through them itself, also where a service agent watches the cloud for it: they were said to this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...providers.clock import Clock
from ...providers.notice import NoticeSource

if TYPE_CHECKING:
    from ..config.options import Options


def make(options: Options, clock: Clock) -> list[NoticeSource]:
    """One source for each that was said.

    Raises:
        UsageError: a deadline is past, or another user could meddle with the file.
    """
    found: list[NoticeSource] = []
    if options.deadline is not None:
        from .deadline import DeadlineSource

        found.append(DeadlineSource(options.deadline, clock))
    if options.notice_file is not None:
        from .notice_file import NoticeFile  # here as above: who says neither has neither in memory

        found.append(NoticeFile(Path(options.notice_file), clock))
    return found
