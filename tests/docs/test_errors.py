"""The errors that need action, and the states of a notice source, are explained."""

from __future__ import annotations

import ast
from typing import get_args

from spotguard.providers.health import Reason, Sight
from tests.docs.messages import messages_in
from tests.docs.pages import ROOT, unmarked


def test_a_message_is_known_by_its_first_fixed_words() -> None:
    tree = ast.parse('raise UsageError(f"{a}: {b!r} is a thing that cannot be; say " "another")')
    assert [unmarked(each.words) for each in messages_in(tree, "x.py")] == ["is a thing that cannot be;"]


def test_every_state_and_every_reason_of_blindness_is_explained() -> None:
    text = (ROOT / "docs" / "reference" / "health.md").read_text()
    for word in (*Sight, *get_args(Reason)):
        assert not word or f"\n| `{word}` | " in text, word
