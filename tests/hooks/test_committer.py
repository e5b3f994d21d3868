"""One rank's commit, and what it says of the others."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from spotguard.hooks.committer import say_what_drifted
from spotguard.hooks.format.keys import CheckpointName

NAME = CheckpointName(1, 40, 6)


def test_replicas_that_differ_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """By the tensor, and by how many more there are."""
    alike = {"model/a": 1, "model/b": 2}
    say_what_drifted(NAME, [alike, {**alike, "model/b": 3}, {}])
    assert "model/b differ" in caplog.text
    assert "model/a" not in caplog.text


def test_replicas_that_are_alike_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    say_what_drifted(NAME, [{"model/a": 1}, {"model/a": 1}, {"model/other": 2}])
    assert caplog.text == ""


def test_of_many_a_few_are_named(caplog: pytest.LogCaptureFixture) -> None:
    digests = [{f"model/{i}": i + rank for i in range(9)} for rank in range(2)]
    say_what_drifted(NAME, digests)
    assert "model/4 and 4 more" in caplog.text
