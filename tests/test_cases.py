"""`cases`: no row is passed over, and one that fails is named."""

from __future__ import annotations

import inspect

import pytest

from tests.cases import cases


def test_every_row_is_tried_with_what_the_test_was_given() -> None:
    tried = []

    @cases("a, b", [(1, 2), (3, 4)])
    @cases("c", ["x", "y"])
    def test(given: str, a: int, b: int, c: str) -> None:
        tried.append((given, a, b, c))

    assert list(inspect.signature(test).parameters) == ["given"]
    test(given="g")
    assert tried == [("g", 1, 2, "x"), ("g", 1, 2, "y"), ("g", 3, 4, "x"), ("g", 3, 4, "y")]


def test_a_row_that_fails_is_named_and_the_others_are_tried() -> None:
    tried = []

    @cases("number", [1, 2, 3, 4])
    def test(number: int) -> None:
        tried.append(number)
        assert number != 2

    with pytest.raises(AssertionError) as one:
        test()
    assert tried == [1, 2, 3, 4]
    assert one.value.__notes__ == ["case: number=2"]

    @cases("number", [1, 2, 3, 4])
    def tests(number: int) -> None:
        assert number % 2

    with pytest.raises(ExceptionGroup, match="2 of 4 cases") as several:
        tests()
    assert [error.__notes__ for error in several.value.exceptions] == [["case: number=2"], ["case: number=4"]]


def test_a_skip_is_a_skip() -> None:
    @cases("number", [1, 2])
    def test(number: int) -> None:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception):
        test()


@pytest.mark.parametrize(("names", "table"), [("number", []), ("nmuber", [1]), ("number, more", [(1, 2)])])
def test_a_table_without_rows_and_a_wrong_name_are_refused(names: str, table: list[object]) -> None:
    """A test of no cases would pass for ever."""

    def test(number: int) -> None:
        raise AssertionError

    with pytest.raises(AssertionError, match=r"no case gives|does not take"):
        cases(names, table)(test)
