"""Nobody meets an error or a warning that no page explains."""

from __future__ import annotations

import ast
from typing import get_args

from spotguard.providers.health import Reason, Sight
from tests.docs.messages import Message, messages, messages_in
from tests.docs.pages import ROOT, prose, unmarked

PAGES = " ".join(
    prose(page)
    for page in (
        ROOT / "docs" / "reference" / "errors.md",
        *sorted((ROOT / "docs" / "how-to" / "clouds").glob("*.md")),
    )
)

#: Where a message is wholly another's: what passes on a reason, or names a file and line.
PASSED_ON = 1


def _shown(message: Message) -> str:
    return unmarked(message.words)


def test_every_message_of_the_code_is_explained() -> None:
    found = {message.place: _shown(message) for message in messages()}
    own = {place: words for place, words in found.items() if len(words.split()) > PASSED_ON}
    assert [(place, words) for place, words in own.items() if words not in PAGES] == [], "in no page"


def test_the_messages_are_found() -> None:
    """What is looked for is there: errors, warnings, advice, in every room."""
    found = list(messages())
    assert len(found) > 150
    words = " ".join(_shown(message) for message in found)
    for one in ("is not an URL", "unguarded: no agent", "raise the hop limit", "which command?"):
        assert one in words


def test_a_message_is_known_by_its_first_fixed_words() -> None:
    tree = ast.parse('raise UsageError(f"{a}: {b!r} is a thing that cannot be; say " "another")')
    assert [_shown(each) for each in messages_in(tree, "x.py")] == ["is a thing that cannot be;"]


def test_every_state_and_every_reason_of_blindness_is_explained() -> None:
    text = (ROOT / "docs" / "reference" / "health.md").read_text()
    for word in (*Sight, *get_args(Reason)):
        assert not word or f"\n| `{word}` | " in text, word
