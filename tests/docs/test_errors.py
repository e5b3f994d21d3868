"""The errors that need action, and the states of a notice source, are explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import get_args

from spotguard.providers.health import Reason, Sight
from tests.docs.messages import messages_in, sources
from tests.docs.pages import ROOT, unmarked


def test_a_message_is_known_by_its_first_fixed_words() -> None:
    tree = ast.parse('raise UsageError(f"{a}: {b!r} is a thing that cannot be; say " "another")')
    assert [unmarked(each.words) for each in messages_in(tree, "x.py")] == ["is a thing that cannot be;"]


def test_every_state_and_every_reason_of_blindness_is_explained() -> None:
    text = (ROOT / "docs" / "reference" / "health.md").read_text()
    for word in (*Sight, *get_args(Reason)):
        assert not word or f"\n| `{word}` | " in text, word


#: Messages that a store or the system writes: the code is in the advice that spotguard adds.
OF_OTHERS = {"AccessDenied (403)", "AuthorizationPermissionMismatch (403)", "No space left on device"}


#: The code of a message.
_CODE = re.compile(r"SG\d{3}")


def test_each_message_on_the_errors_page_is_one_that_spotguard_prints_with_its_code() -> None:
    """With … for what the code fills in: the fixed parts of the message, in one literal and in this order."""
    literals = [
        literal
        for text in sources().values()
        if _CODE.search(text)
        for parts in texts(ast.parse(text))
        if "[SG" in (literal := "".join("…" if part is None else part for part in parts))
    ]
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    entries = re.findall(r"^### (SG\d{3}): .*\n\n(`.*`)$", page, re.MULTILINE)
    printed = {code for literal in literals for code in re.findall(r"\[(SG\d{3})\]", literal)}
    assert len(entries) > 50
    assert sorted(printed) == [code for code, _ in entries]
    wrong = []
    for code, line in entries:
        coded = [literal for literal in literals if f"[{code}]" in literal]
        for message in re.findall(r"`([^`]+)`", line):
            fixed = [re.escape(part.strip()) for part in re.split("…|%[.0-9a-z]+", message) if part.strip()]
            known = any(re.search(".*".join(fixed), literal, re.DOTALL) for literal in coded)
            if not known and message not in OF_OTHERS:
                wrong.append(f"{code}: {message}")
    assert wrong == []


def texts(tree: ast.AST) -> Iterator[list[str | None]]:
    """Each text literal of a file as its fixed parts; None where a value goes in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield [part.value if isinstance(part, ast.Constant) else None for part in node.values]  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield [re.sub(r"%[.0-9]*[a-z]", "…", node.value)]
