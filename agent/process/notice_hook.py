"""`--on-notice`: the operator's command, which runs beside everything else when a notice ends this machine.

No save waits for the command. The agent kills it at the reserve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...providers.clock import Clock
from ...providers.notice import Notice
from ...providers.text import TEXT, clip
from ..config.options import NOTICE_FACTS
from ..events import Event, NoticeHookEnded
from .shell_command import ShellCommand


def facts(notice: Notice, left: float) -> dict[str, str]:
    """Return the variables for the command's environment. The seconds are whole, because a shell computes with integers only."""
    values = (
        notice.id,
        str(notice.kind),
        str(notice.severity),
        notice.source,
        str(int(max(0.0, left))),
        notice.detail,
    )
    return {name: clip(value, TEXT) for name, value in zip(NOTICE_FACTS, values, strict=True)}


class NoticeHook:
    """The runner of the command. The loop's thread calls `tell` and `close`."""

    def __init__(
        self, command: str, env: Mapping[str, str], post: Callable[[Event], None], clock: Clock
    ) -> None:
        self._env = env
        self._command = ShellCommand("--on-notice", command, clock, lambda: post(NoticeHookEnded()))

    @property
    def busy(self) -> bool:
        return self._command.busy

    def tell(self, notice: Notice, left: float, until: float) -> None:
        """Run the command with this notice's facts, and kill it at `until` (monotonic seconds). Never blocks."""
        self._command.start(notice.id, {**self._env, **facts(notice, left)}, until)

    def close(self) -> None:
        """End the commands that still run."""
        self._command.close()
