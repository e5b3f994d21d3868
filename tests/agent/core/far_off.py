"""What tests of severities tell: a deadline that is far off, a warning, and that nothing came of it."""

from __future__ import annotations

from spotguard.agent.actions import Action, Log
from spotguard.hooks.ipc.protocol import Preempt, Withdrawn
from spotguard.providers.notice import NoticeKind, Severity
from tests.fakes.story import Story

HOUR = 3600.0


def later(
    story: Story,
    left: float = HOUR,
    id: str = "later",
    *,
    source: str = "azure scheduled-events",
    kind: NoticeKind = NoticeKind.REBOOT,
) -> list[Action]:
    return story.notice(left, id=id, kind=kind, severity=Severity.LATER, source=source, window=7 * 86400.0)


def advisory(story: Story, id: str = "warning") -> list[Action]:
    return story.notice(0.0, id=id, kind=NoticeKind.REBALANCE, severity=Severity.ADVISORY)


def undisturbed(story: Story) -> None:
    """Nobody was told to save or to go, and nothing was signalled."""
    assert story.machine.preemption is None
    assert (story.sent(Preempt), story.sent(Withdrawn), story.signals) == ([], [], [])
    assert (story.outcomes, story.killed, story.code) == ([], False, None)


def logged(story: Story, words: str) -> list[str]:
    return [log.text for log in story.all(Log) if words in log.text]
