"""A service that runs for months holds no more than one that has just begun."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

from spotguard.providers.notice import Notice
from tests.fakes.story import START, Story

DRILLS = 50
#: Seconds from one drill to the next: whatever follows a notice is over by then.
APART = 1000


def notices_in(root: object) -> int:
    """How many notices can be reached from here, by way of values alone."""
    seen, waiting = {id(root)}, [root]
    count = 0
    while waiting:
        each = waiting.pop()
        count += isinstance(each, Notice)
        for found in gc.get_referents(each):
            if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
                seen.add(id(found))
                waiting.append(found)
    return count


def test_drills_remembered_for_ever() -> None:
    """A rehearsed preemption every quarter of an hour leaves nothing behind once it is over."""
    story = Story(command=False)
    training = story.opens()
    for drill in range(1, DRILLS + 1):
        story.asks(preempt=True)
        story.commits(training)
        assert story.machine.preemption is None
        story.until(drill * APART)
    assert story.now == START + DRILLS * APART
    assert notices_in(story.machine) <= 1
