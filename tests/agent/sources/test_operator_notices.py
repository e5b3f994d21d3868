"""What an operator writes: whatever it is, it is a notice, and nothing but `cancel` takes it back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.agent.sources.notice_file import WINDOW, OperatorNotice, fold, read, whole
from spotguard.providers.notice import NoticeKind
from tests.cases import cases

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@cases(
    "line, said",
    [
        ("", OperatorNotice()),
        ("terminate", OperatorNotice(NoticeKind.TERMINATE)),
        ("Maintenance 60", OperatorNotice(NoticeKind.MAINTENANCE, 60.0)),
        ("60", OperatorNotice(window=60.0)),
        ("60s", OperatorNotice(window=60.0)),
        ("reboot 0", OperatorNotice(NoticeKind.REBOOT, 0.0)),
        ("stop 30 rack 7 loses its power", OperatorNotice(NoticeKind.STOP, 30.0, "rack 7 loses its power")),
        ("rack 7 loses its power", OperatorNotice(detail="rack 7 loses its power")),
        ("7 of 9 racks", OperatorNotice(window=7.0, detail="of 9 racks")),
        ("drill", OperatorNotice(detail="drill")),  # a drill is not made here
        ("-5", OperatorNotice(window=0.0)),
        ("nan", OperatorNotice(detail="nan")),
        ("1e99", OperatorNotice(window=7 * 86400.0)),
        (
            '{"kind": "Preempt", "window": 45, "detail": "by hand"}',
            OperatorNotice(NoticeKind.PREEMPT, 45.0, "by hand"),
        ),
        ('{"window": "45s"}', OperatorNotice(window=45.0)),
        ('{"kind": "freeze", "window": true, "detail": 7}', OperatorNotice()),
        ('{"kind": ["terminate"], "window": [1]}', OperatorNotice()),
        ("{}", OperatorNotice()),
        ("{not json", OperatorNotice(detail="{not json")),
        ("[1, 2]", OperatorNotice(detail="[1, 2]")),
        ("a\x1b[2Jb", OperatorNotice(detail="a [2Jb")),
    ],
)
def test_a_line_as_a_notice(line: str, said: OperatorNotice) -> None:
    """Seconds count only where they stand first, or behind a kind."""
    assert read(line) == said


@pytest.mark.parametrize("line", ["cancel", " CANCEL "])
def test_cancel_takes_back_what_came_before_it(line: str) -> None:
    stood = fold((), ["terminate", "stop 30", "terminate"])
    assert stood == (OperatorNotice(NoticeKind.TERMINATE), OperatorNotice(NoticeKind.STOP, 30.0))
    assert fold(stood, [line]) == ()
    assert fold(stood, [line, "60"]) == (OperatorNotice(window=60.0),)


def test_json_over_several_lines_is_one() -> None:
    """In a file; one object a line are several."""
    pretty = json.dumps({"kind": "stop", "window": 9}, indent=2)
    assert [read(line) for line in whole(pretty)] == [OperatorNotice(NoticeKind.STOP, 9.0)]
    assert whole('{"window": 1}\n\n{"window": 2}\n') == ['{"window": 1}', '{"window": 2}']
    assert whole("\n \n") == []


@given(st.text() | JSON.map(json.dumps) | st.dictionaries(st.text(max_size=9), JSON).map(json.dumps))
def test_any_words_are_a_notice(text: str) -> None:
    """With a window that is a time, and words for one line."""
    for line in whole(text):
        said = read(line)
        if said is None:
            assert line.strip().lower() == "cancel"
            continue
        assert 0 <= said.window <= 7 * 86400
        assert "\n" not in said.detail
        assert len(said.detail) <= 300
    if text.strip() and "cancel" not in text.lower():
        assert fold((), whole(text))


def test_an_operator_notice_without_a_time_leaves_two_minutes() -> None:
    assert OperatorNotice().window == WINDOW
