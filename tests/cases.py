"""Many small cases as one test: what it costs to collect, set up and report a test is paid once.

`@cases` stands where `@pytest.mark.parametrize` would: for a table of values that need nothing of their own. Fixtures are
the same for all cases, so a case that changes what it is given keeps `parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def cases(names: str, table: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test once for each row. All rows are tried, and each that fails is named in a note of its error.

    Args:
        names: the arguments that a row gives, with commas between; a row of several names is a tuple.
    """
    words = [name.strip() for name in names.split(",")]
    rows = [row if len(words) > 1 else (row,) for row in table]
    assert rows, f"no case gives {names}"

    def folded(test: Test) -> Test:
        @functools.wraps(test)
        def each(**fixtures: Any) -> None:
            errors: list[Exception] = []
            for row in rows:
                given = dict(zip(words, row, strict=True))
                try:
                    test(**fixtures, **given)
                except Exception as error:  # noqa: BLE001 - raised below, when the other rows were tried
                    error.add_note("case: " + ", ".join(f"{name}={value!r}" for name, value in given.items()))
                    errors.append(error)
            if len(errors) == 1:
                raise errors[0]
            if errors:
                raise ExceptionGroup(f"{len(errors)} of {len(rows)} cases", errors)

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in words]
        assert len(left) + len(words) == len(signature.parameters), f"{test.__name__} does not take {names}"
        each.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # what pytest gives
        return each

    return folded
